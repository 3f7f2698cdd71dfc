"""A first proof that nothing is lost: processes are killed, and every request has one result."""

from pathlib import Path

from cli.fleet.catalog import CHAT_MODEL
from shared.slices import Part
from tests.e2e.conftest import WARM_SECONDS, RunningFleet, chat_lines, until
from tests.eventually import eventually

LANE = f"{CHAT_MODEL}@local"


async def test_a_killed_lane_job_is_replaced_and_no_committed_row_is_run_again(
    warm_chat: RunningFleet,
) -> None:
    state = warm_chat.state()
    batch = warm_chat.submit(chat_lines(1000, tokens=64), "/v1/chat/completions")
    await eventually(lambda: _has_parts(warm_chat, batch.id, 2), WARM_SECONDS)
    victims = warm_chat.lane_jobs(CHAT_MODEL)
    assert len(victims) == 1

    victims[0].kill()
    committed: dict[int, Part] = await state.slices.parts(batch.id)
    claimed = await state.slices.epochs(batch.id)
    ended = warm_chat.wait(batch)

    assert ended.status == "completed"
    custom_ids = [result["custom_id"] for result in warm_chat.results(ended)]
    assert [f"row-{row}" for row in range(1000)] == custom_ids
    final = await state.slices.parts(batch.id)
    assert committed
    # A part's key holds the epoch of its claim: the same key means that it was never run again.
    assert committed == {index: final[index] for index in committed}
    again = await state.slices.epochs(batch.id)
    # One that was put back while a wave started has a second claim before its first run.
    assert {index: claimed[index] for index in committed} == {i: again[i] for i in committed}
    assert any(epoch > claimed.get(index, 1) for index, epoch in again.items()), (
        "the kill hit nothing"
    )
    await state.close()


def test_a_dispatcher_killed_between_acknowledging_and_planning_loses_nothing(
    warm_chat: RunningFleet, tmp_path: Path
) -> None:
    log = tmp_path / "crashes"
    warm_chat.restart_dispatcher(BATCHYARD_CRASH_AT="planner.begin", BATCHYARD_CRASH_LOG=str(log))

    batch = warm_chat.submit(chat_lines(20), "/v1/chat/completions")
    until(lambda: not warm_chat.dispatcher.is_alive())
    waiting = warm_chat.client.batches.retrieve(batch.id)
    warm_chat.restart_dispatcher(BATCHYARD_CRASH_AT="", BATCHYARD_CRASH_LOG="")
    ended = warm_chat.wait(batch)

    assert log.read_text().split() == ["planner.begin"]
    assert waiting.status == "validating"
    assert ended.status == "completed"
    assert 20 == len({result["custom_id"] for result in warm_chat.results(ended)})


async def test_a_dispatcher_killed_while_it_finishes_a_batch_is_followed_by_another(
    warm_chat: RunningFleet, tmp_path: Path
) -> None:
    for point in ("finaliser.assembled", "finaliser.committed"):
        log = tmp_path / point
        warm_chat.restart_dispatcher(BATCHYARD_CRASH_AT=point, BATCHYARD_CRASH_LOG=str(log))
        batch = warm_chat.submit(chat_lines(5), "/v1/chat/completions")
        await eventually(lambda: not warm_chat.dispatcher.is_alive())
        warm_chat.restart_dispatcher(BATCHYARD_CRASH_AT="", BATCHYARD_CRASH_LOG="")

        ended = warm_chat.wait(batch)

        assert log.read_text().split() == [point]
        assert ended.status == "completed"
        assert [f"row-{row}" for row in range(5)] == [
            result["custom_id"] for result in warm_chat.results(ended)
        ]


async def _has_parts(fleet: RunningFleet, batch_id: str, count: int) -> bool:
    state = fleet.state()
    try:
        return len(await state.slices.parts(batch_id)) >= count
    finally:
        await state.close()
