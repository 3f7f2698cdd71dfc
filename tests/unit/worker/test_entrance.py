import asyncio
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.ordering.work import Work
from shared.rows_in_engine import RowsInEngine
from shared.slices import SliceUsage
from worker.engine_seats import Capacity, StepOutput
from worker.entrance import Entrance, GivenBackError, WithdrawnError
from worker.few_at_a_time import FEW, Few
from worker.live_control import MOST_PROMPT_TOKENS, Goals, Yielding
from worker.step_limit import headers

WORK = Work("batch", 0, "acme", 0, 0, 86_400, 10)
SEATS = 2


def an_entrance() -> Entrance:
    return Entrance(Capacity(seats=SEATS, spare_seats=0, spare_kv=0.1), lambda: 0.0)


class Core:
    """Where vLLM stands: has sequences until they are let out."""

    def __init__(self, entrance: Entrance) -> None:
        self._entrance = entrance
        self.ids: list[str] = []
        self._open = asyncio.Event()

    async def run(self, row: str, work: Work = WORK, sequences: int = 1) -> None:
        """Run a row of so many sequences to its end."""
        async with self._entrance.entered(work):
            await asyncio.gather(*(self._seat(f"{row}-{number}") for number in range(sequences)))
            await self._open.wait()

    async def _seat(self, id_: str) -> None:
        await self._entrance.seat(id_, prompt_tokens=5, max_tokens=5)
        self.ids.append(id_)

    def let_out(self) -> None:
        self._open.set()


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_no_more_sequences_are_in_vllm_than_there_are_seats() -> None:
    entrance = an_entrance()
    core = Core(entrance)
    rows = [asyncio.create_task(core.run(f"row{number}", sequences=2)) for number in range(3)]
    await settled()

    assert core.ids == ["row0-0", "row0-1"]
    assert entrance.seated == SEATS
    entrance.note(0.0, [StepOutput("row0-0", 1, is_last=True)])
    await settled()
    assert core.ids[2:] == ["row1-0"]

    core.let_out()
    async with asyncio.timeout(60):
        await asyncio.gather(*rows)
    assert len(core.ids) == 6
    assert entrance.seated == 0


async def test_a_row_of_vectors_of_a_small_batch_waits_for_no_others_of_its_moment() -> None:
    capacity = Capacity(seats=64, spare_seats=4, spare_kv=0, is_one_step=True, step_tokens=8192)
    entrance = Entrance(capacity, lambda: 0.0)
    core = Core(entrance)
    giant = WORK._replace(batch_rows=1000)
    rows = [asyncio.create_task(core.run(f"row{number}", giant)) for number in range(64)]
    small = WORK._replace(batch_id="small", batch_rows=1)
    rows.append(asyncio.create_task(core.run("small", small)))

    # One round in which all ask, and one in which the first ones go on.
    for _ in range(2):
        await asyncio.sleep(0)
    assert "small-0" in core.ids
    assert len(core.ids) <= 1 + FEW

    core.let_out()
    async with asyncio.timeout(60):
        await asyncio.gather(*rows)
    assert len(core.ids) == len(rows)


async def test_rows_of_vectors_of_a_small_batch_that_come_together_are_a_group() -> None:
    capacity = Capacity(seats=64, spare_seats=4, spare_kv=0, is_one_step=True, step_tokens=8192)
    few = Few()
    entrance = Entrance(capacity, lambda: 0.0, few=few)
    small, giant = (WORK._replace(batch_rows=rows) for rows in (2, 1000))
    works = [small, giant, small]

    group = entrance.group_of(works)
    assert group is not None
    assert group.rows == 2
    async with entrance.entered(small, group):
        seat = await entrance.seat("small", prompt_tokens=3, max_tokens=0)
    async with entrance.entered(giant):
        other = await entrance.seat("giant", prompt_tokens=3, max_tokens=0)

    assert seat is not None
    assert seat.told == headers(None, is_live=False, group=group)
    assert other is not None
    assert other.told == {}
    assert entrance.group_of([small, giant]) is None
    with few.hurry():
        assert entrance.group_of(works) not in (None, group)
        with few.hurry():
            assert entrance.group_of(works) is None


def test_rows_of_texts_begin_by_themselves() -> None:
    assert an_entrance().group_of([WORK._replace(batch_rows=0)] * 3) is None


async def test_a_step_beside_live_calls_has_no_more_prompts_than_the_seats_need() -> None:
    seats = 256
    capacity = Capacity(seats, 0, spare_kv=0, step_tokens=8192, live_seats=1)
    entrance = Entrance(capacity, lambda: 0.0, goals=Goals(ttft=1.0, tpot=0.1))
    assert entrance.step_prompt_tokens == MOST_PROMPT_TOKENS

    async with entrance.entered(WORK):
        await entrance.seat("row", prompt_tokens=96, max_tokens=128)
        entrance.note(0.0, [StepOutput("row", 128, is_last=True)])

    assert entrance.step_prompt_tokens == 1.25 * seats * 96 / 128


async def test_what_vllm_aborts_leaves_its_seat() -> None:
    entrance = an_entrance()
    core = Core(entrance)
    rows = [asyncio.create_task(core.run(f"row{number}")) for number in range(3)]
    await settled()

    entrance.release(["row0-0"])
    await settled()

    assert core.ids == ["row0-0", "row1-0", "row2-0"]
    for row in rows:
        row.cancel()
    await asyncio.wait(rows)
    assert entrance.seated == 0


async def test_a_row_that_is_cancelled_at_any_moment_leaves_its_seat_to_others() -> None:
    entrance = an_entrance()
    for moments in range(8):
        core = Core(entrance)
        rows = [asyncio.create_task(core.run(f"row{number}")) for number in range(5)]
        for _ in range(moments):
            await asyncio.sleep(0)
        for row in rows:
            row.cancel()
        await asyncio.wait(rows)
        assert entrance.seated == 0

    core = Core(entrance)
    core.let_out()
    async with asyncio.timeout(60):
        await core.run("last", sequences=SEATS)


async def test_rows_that_are_withdrawn_have_no_seat_and_those_that_have_one_stay() -> None:
    entrance = an_entrance()
    core = Core(entrance)
    mine, other = (WORK._replace(batch_id=name, tenant=name) for name in ("mine", "other"))
    # Eight rows are prepared while others have the seats; the rest waits.
    rows = [asyncio.create_task(core.run(f"mine{number}", mine)) for number in range(14)]
    await settled()
    rows.append(asyncio.create_task(core.run("other", other)))
    await settled()

    entrance.withdraw("mine")
    await settled()
    core.let_out()

    async with asyncio.timeout(60):
        ends = await asyncio.gather(*rows, return_exceptions=True)
    assert [type(end) for end in ends] == [type(None)] * 2 + [WithdrawnError] * 12 + [type(None)]
    assert core.ids == ["mine0-0", "mine1-0", "other-0"]


async def test_a_live_call_passes_all_rows_of_batches() -> None:
    entrance = Entrance(Capacity(seats=SEATS, spare_seats=0, spare_kv=0.1, live_seats=1))
    core = Core(entrance)
    rows = [asyncio.create_task(core.run(f"row{number}")) for number in range(20)]
    await settled()

    with entrance.entered_live("acme", "salt"):
        async with asyncio.timeout(60):
            seat = await entrance.seat("live", prompt_tokens=5, max_tokens=5)
        assert seat is not None
        assert (seat.row.work.cache_salt, seat.row.is_live) == ("salt", True)
        assert seat.row.rank is not None
        assert seat.row.rank < 0
        assert entrance.seated == SEATS + 1

    assert entrance.seated == SEATS
    for one in rows:
        one.cancel()
    await asyncio.wait(rows)


async def test_fewer_rows_follow_while_live_calls_miss_their_goal() -> None:
    now = 0.0
    entrance = Entrance(
        Capacity(seats=8, spare_seats=0, spare_kv=0, live_seats=1), lambda: now, Goals(0.5, 0.05)
    )
    core = Core(entrance)
    rows = [asyncio.create_task(core.run(f"row{number}")) for number in range(40)]
    await settled()
    assert entrance.seated == 8

    with entrance.entered_live("acme", ""):
        await entrance.seat("live", prompt_tokens=5, max_tokens=5)
        for _ in range(4):
            now += 1.0
            ended = core.ids[-8:]
            entrance.note(0.0, [StepOutput("live", 1, is_last=False)])
            entrance.note(0.0, [StepOutput(id_, 1, is_last=True) for id_ in ended])
            await settled()
        beside = entrance.seated - 1
    assert beside < 4

    now += 10.0
    entrance.note(0.0, [StepOutput(core.ids[-1], 1, is_last=True)])
    await settled()
    assert entrance.seated == 8
    for one in rows:
        one.cancel()
    await asyncio.wait(rows)


async def test_a_clock_that_is_set_back_keeps_no_seats_from_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wall, steady = 1_000_000.0, 50.0
    clocks = SimpleNamespace(time=lambda: wall, monotonic=lambda: steady)
    monkeypatch.setattr("worker.entrance.time", clocks)
    capacity = Capacity(seats=8, spare_seats=0, spare_kv=0, live_seats=1)
    entrance = Entrance(capacity, goals=Goals(0.5, 0.05))
    for number in range(8):
        with entrance.entered_live("acme", ""):
            await entrance.seat(f"live{number}", prompt_tokens=5, max_tokens=5)
            entrance.note(0.0, [StepOutput(f"live{number}", 1, is_last=False)])
            steady += 1.0
            entrance.note(0.0, [StepOutput(f"live{number}", 1, is_last=True)])

    wall, steady = wall - 3600.0, steady + 120.0
    core = Core(entrance)
    rows = [asyncio.create_task(core.run(f"row{number}")) for number in range(40)]
    await settled()
    assert entrance.seated == 8
    for one in rows:
        one.cancel()
    await asyncio.wait(rows)


async def test_rows_without_a_seat_go_to_another_engine_when_people_have_this_one() -> None:
    now = 0.0
    # No engine has this goal: rows leave it to people.
    entrance = Entrance(
        Capacity(seats=16, spare_seats=0, spare_kv=0, live_seats=1), lambda: now, Goals(tpot=1e-9)
    )
    core = Core(entrance)
    rows = [asyncio.create_task(core.run(f"row{number}")) for number in range(40)]
    await settled()
    running = set(core.ids)
    assert not entrance.is_for_people

    with entrance.entered_live("acme", ""):
        await entrance.seat("live", prompt_tokens=5, max_tokens=5)
        for _ in range(20):
            now += 0.5
            entrance.note(0.0, [StepOutput("live", 1, is_last=False)])
            await settled()
        assert entrance.is_for_people
        assert not any(row.done() for row in rows)

        entrance.know_free(1)
        entrance.note(0.0, [StepOutput("live", 1, is_last=False)])
        await settled()

    ends = {f"row{number}-0": row for number, row in enumerate(rows)}
    assert {id_ for id_, row in ends.items() if not row.done()} == running
    assert all(isinstance(row.exception(), GivenBackError) for row in rows if row.done())
    for one in rows:
        one.cancel()
    await asyncio.wait(rows)


async def test_before_the_end_of_a_window_rows_keep_their_seats_if_the_operator_wants_it() -> None:
    now, end = 0.0, 100.0
    entrance = Entrance(
        Capacity(seats=8, spare_seats=0, spare_kv=0, live_seats=1),
        lambda: now,
        Goals(0.5, 0.05),
        Yielding(deadline_seconds=60.0),
    )
    core = Core(entrance)
    work = WORK._replace(expires_at=end)
    rows = [asyncio.create_task(core.run(f"row{number}", work)) for number in range(80)]
    await settled()

    async def beside() -> int:
        """How many rows run after the live call has missed its goal some times."""
        nonlocal now
        for _ in range(4):
            now += 1.0
            ended = core.ids[-8:]
            entrance.note(0.0, [StepOutput("live", 1, is_last=False)])
            entrance.note(0.0, [StepOutput(id_, 1, is_last=True) for id_ in ended])
            await settled()
        return entrance.seated - 1

    with entrance.entered_live("acme", ""):
        await entrance.seat("live", prompt_tokens=5, max_tokens=5)
        early = await beside()
        now = end - 60.0
        late = await beside()
    for one in rows:
        one.cancel()
    await asyncio.wait(rows)

    assert early < 4
    assert late == 8


#: What a client of a live call or of a row does next: it comes, goes, or the engine ends a step.
STEP = st.tuples(st.sampled_from(["live", "row", "go", "step", "end"]), st.integers(0, 9))


@given(st.lists(STEP, max_size=40))
@settings(deadline=None)
def test_no_seat_stays_taken_whatever_clients_do(steps: list[tuple[str, int]]) -> None:
    asyncio.run(_run_steps(steps))


async def _run_steps(steps: list[tuple[str, int]]) -> None:
    entrance = Entrance(Capacity(seats=SEATS, spare_seats=0, spare_kv=0.1, live_seats=2))
    core, never = Core(entrance), asyncio.Event()

    async def call(id_: str) -> None:
        with entrance.entered_live("acme", ""):
            await entrance.seat(id_, prompt_tokens=5, max_tokens=5)
            await never.wait()

    tasks: list[asyncio.Task[None]] = []
    for number, (what, which) in enumerate(steps):
        match what:
            case "live":
                tasks.append(asyncio.create_task(call(f"live{number}")))
            case "row":
                tasks.append(asyncio.create_task(core.run(f"row{number}")))
            case "go" if tasks:
                tasks[which % len(tasks)].cancel()
            case "step":
                await asyncio.sleep(0)
            case "end" if core.ids:
                entrance.note(0.0, [StepOutput(core.ids[which % len(core.ids)], 1, is_last=True)])
        assert entrance.seated <= SEATS + 2
    await settled()
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    assert entrance.seated == 0
    core.let_out()
    async with asyncio.timeout(60):
        await asyncio.gather(*(core.run(f"last{number}") for number in range(SEATS)))
    assert entrance.seated == 0


async def test_what_is_no_row_of_a_batch_does_not_wait() -> None:
    entrance = an_entrance()
    core = Core(entrance)
    row = asyncio.create_task(core.run("row", sequences=SEATS))
    await settled()

    async with asyncio.timeout(60):
        await entrance.seat("health", prompt_tokens=5, max_tokens=5)

    core.let_out()
    await row


async def test_rows_that_begin_together_are_told_so() -> None:
    seats, answer = 32, 32
    entrance = Entrance(Capacity(seats, 0, spare_kv=0, step_tokens=8192), lambda: 0.0)
    told: dict[str, dict[str, str]] = {}
    done = asyncio.Event()

    async def run(id_: str) -> None:
        async with entrance.entered(WORK):
            seat = await entrance.seat(id_, prompt_tokens=10, max_tokens=answer)
            assert seat is not None
            told[id_] = seat.told
            await done.wait()

    rows = [asyncio.create_task(run(f"{number}")) for number in range(2 * seats)]
    await settled()
    # Nothing was known of the answers when these had their seats.
    first = list(told)
    entrance.note(0.0, [StepOutput(first[0], answer, is_last=True)])
    await settled()
    assert len(told) == seats
    entrance.note(0.0, [StepOutput(id_, answer, is_last=True) for id_ in first[1:10]])
    await settled()
    later = [told[id_]["batchyard-group"] for id_ in told if id_ not in first]
    done.set()
    await asyncio.gather(*rows)

    assert [told[id_] for id_ in first] == [{}] * seats
    assert later == ["0/10"] * 10


async def test_batches_are_here_while_a_row_waits_for_live_calls() -> None:
    entrance = Entrance(Capacity(1, 0, spare_kv=0, live_seats=1), lambda: 0.0, Goals())
    with entrance.entered_live("acme", ""):
        for number in range(2):
            await entrance.seat(f"live-{number}", prompt_tokens=5, max_tokens=5)
        assert not entrance.has_batches
        core = Core(entrance)
        row = asyncio.create_task(core.run("row"))
        await settled()
        assert core.ids == []
        assert entrance.has_batches
        row.cancel()
        await asyncio.wait([row])

    assert not entrance.has_batches


async def test_it_tells_how_far_the_rows_of_each_batch_are() -> None:
    entrance = an_entrance()
    core = Core(entrance)
    async with entrance.entered(WORK._replace(number=9)) as guest:
        await entrance.seat("done", prompt_tokens=5, max_tokens=5)
        entrance.note(0.0, [StepOutput("done", 4, is_last=True)])
        entrance.learn(guest, SliceUsage(1, 0, 5, 0, 4, 0))
    # The third finds no seat.
    rows = [asyncio.create_task(core.run(f"row{number}", sequences=1)) for number in range(3)]
    await settled()

    entrance.note(
        0.0, [StepOutput("row0-0", 2, is_last=False), StepOutput("row1-0", 1, is_last=False)]
    )

    assert entrance.rows_of_batches() == {"batch": RowsInEngine(1, 4, inside=2, made=3)}
    core.let_out()
    await asyncio.gather(*rows)
    assert entrance.rows_of_batches() == {"batch": RowsInEngine(1, 4)}
