"""Batches of all tenants share a lane job, an engine and few executions; small ones are quick."""

import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from openai import OpenAI
from openai.types import Batch

from cli.fleet.catalog import CHAT_MODEL
from shared.state import JobRecord
from tests.e2e.conftest import WARM_SECONDS, RunningFleet, chat_lines
from tests.eventually import eventually

LANE = f"{CHAT_MODEL}@local"


@pytest.fixture(scope="module")
def tenants(fleet: RunningFleet) -> list[OpenAI]:
    return [fleet.client_of(name) for name in ("acme", "globex", "initech")]


@pytest.fixture
def lane_job(warm_chat: RunningFleet) -> psutil.Process:
    """The chat model's: it ends by itself while slow tests run that do not need it."""
    warm_chat.wait(warm_chat.submit(chat_lines(1), "/v1/chat/completions"))
    [process] = warm_chat.lane_jobs(CHAT_MODEL)
    return process


async def test_sixty_small_batches_of_three_tenants_share_one_job_one_engine_and_few_executions(
    warm_chat: RunningFleet, lane_job: psutil.Process, tenants: list[OpenAI]
) -> None:
    before = await _job(warm_chat)
    seen = len(warm_chat.lane_job_log(CHAT_MODEL))
    engines = _engine_processes(warm_chat)
    files = [
        client.files.create(file=("in.jsonl", chat_lines(5, tokens=128)), purpose="batch").id
        for client in tenants
    ]

    def create(number: int) -> tuple[OpenAI, Batch]:
        client = tenants[number % 3]
        batch = client.batches.create(
            input_file_id=files[number % 3],
            endpoint="/v1/chat/completions",
            completion_window="24h",
        )
        return client, batch

    # Held, so that they are all there at the same moment, however slowly they are made.
    lane_job.suspend()
    try:
        # A large one, part of which goes into waves; none of the small ones waits for a wave.
        warm_chat.submit(chat_lines(400, tokens=64), "/v1/chat/completions", tenants[0])
        with ThreadPoolExecutor(12) as pool:
            batches = list(pool.map(create, range(60)))
        await eventually(lambda: _are_planned(batches))
    finally:
        lane_job.resume()
    ended = [(client, warm_chat.wait(batch, client)) for client, batch in batches]

    assert {"completed"} == {batch.status for _, batch in ended}
    assert all(len(warm_chat.results(batch, client)) == 5 for client, batch in ended)
    after = await _job(warm_chat)
    assert after.id == before.id
    assert engines == _engine_processes(warm_chat)
    assert after.executions - before.executions <= 10
    waves = [entry for entry in warm_chat.lane_job_log(CHAT_MODEL)[seen:] if "tenants" in entry]
    assert all(len(wave["batches"]) == 1 for wave in waves)


async def test_a_wave_starts_before_the_one_before_it_has_drained(
    warm_chat: RunningFleet, lane_job: psutil.Process, tenants: list[OpenAI]
) -> None:
    seen = len(warm_chat.lane_job_log(CHAT_MODEL))

    def has_overlap() -> bool:
        running: set[int] = set()
        for entry in warm_chat.lane_job_log(CHAT_MODEL)[seen:]:
            if entry["event"] == "wave.started":
                if entry["wave"] - 1 in running:
                    return True
                running.add(entry["wave"])
            elif entry["event"] == "wave.ended":
                running.discard(entry["wave"])
        return False

    # Held, so that all of them are there before it takes any. They have rows for several waves on a
    # fast machine, too, and the first wave may be a small one: the lane does not know its rate yet.
    lane_job.suspend()
    try:
        batches = [
            (client, warm_chat.submit(chat_lines(8000, tokens=8), "/v1/chat/completions", client))
            for client in tenants
        ]
        await eventually(lambda: _are_planned(batches), WARM_SECONDS)
    finally:
        lane_job.resume()
    await eventually(has_overlap, WARM_SECONDS)

    for client, batch in batches:
        client.batches.cancel(batch.id)
    assert {warm_chat.wait(batch, client).status for client, batch in batches} == {"cancelled"}


def test_a_large_batch_does_not_hold_up_a_one_row_batch_that_comes_after_it(
    warm_chat: RunningFleet, tenants: list[OpenAI]
) -> None:
    large = warm_chat.submit(chat_lines(2000, tokens=64), "/v1/chat/completions", tenants[0])
    while not (counts := tenants[0].batches.retrieve(large.id).request_counts) or (
        counts.completed == 0
    ):
        time.sleep(0.05)

    small = warm_chat.submit(chat_lines(1), "/v1/chat/completions", tenants[0])
    small = warm_chat.wait(small, tenants[0])

    assert small.status == "completed"
    large = tenants[0].batches.retrieve(large.id)
    assert large.status == "in_progress"
    assert large.request_counts is not None
    assert large.request_counts.completed < 2000
    tenants[0].batches.cancel(large.id)
    warm_chat.wait(large, tenants[0])


def _are_planned(batches: list[tuple[OpenAI, Batch]]) -> bool:
    return all(client.batches.retrieve(batch.id).in_progress_at for client, batch in batches)


async def _job(fleet: RunningFleet) -> JobRecord:
    state = fleet.state()
    try:
        return await state.lanes.job(LANE)
    finally:
        await state.close()


def _engine_processes(fleet: RunningFleet) -> set[int]:
    return {process.pid for process in fleet.engines(CHAT_MODEL)}
