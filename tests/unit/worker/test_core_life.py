import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence

import pytest

from shared.ordering.work import Work
from worker.core_life import SOON_SECONDS, CoreLife, while_core_lives
from worker.engine_errors import EngineUnavailableError, Results

WORK = Work("batch_1", 0, "ours", 0, 0.0, 0.0, 1.0)
OTHER = WORK._replace(batch_id="batch_2")


class Server:
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.core_life = CoreLife()
        self.may_answer = asyncio.Event()
        self.began = asyncio.Event()

    @while_core_lives
    async def run_lines(
        self, lines: Sequence[bytes], order: Sequence[Work], wanted: Collection[str]
    ) -> AsyncGenerator[Results, None]:
        self.began.set()
        await self.may_answer.wait()
        for position, work in enumerate(order):
            if work.batch_id in wanted:
                yield [(position, (200, lines[position], 0))]


async def answers(server: Server, *order: Work) -> list[Results]:
    works = order or (WORK,)
    lines = [b"a", b"b"][: len(works)]
    return [results async for results in server.run_lines(lines, works)]


async def awake(server: Server) -> None:
    """As `EngineClient.wake` asks."""
    assert [results async for results in server.run_lines([], [])] == []


def test_a_core_that_answered_or_lived_long_has_a_successor() -> None:
    now = 100.0
    life = CoreLife(lambda: now)

    assert not life.may_restart(has_answered=False)
    assert life.may_restart(has_answered=True)
    now += SOON_SECONDS
    assert life.may_restart(has_answered=False)
    life.begin()
    assert not life.may_restart(has_answered=False)


async def test_a_call_waits_for_a_core_that_comes() -> None:
    server = Server()
    server.may_answer.set()
    await server.core_life.end_calls(60)

    call = asyncio.create_task(answers(server))
    await asyncio.sleep(0.05)
    assert not server.began.is_set()
    assert server.core_life.is_coming
    server.core_life.require_hope()
    server.core_life.begin()

    assert await call == [[(0, (200, b"a", 0))]]
    assert not server.core_life.is_coming


async def test_whoever_wakes_the_engine_waits_for_its_core() -> None:
    server = Server()
    server.may_answer.set()
    await server.core_life.end_calls(60)

    waking = asyncio.create_task(awake(server))
    await asyncio.sleep(0.05)
    server.core_life.withdraw("batch_1")
    await asyncio.sleep(0.05)
    assert not waking.done()
    server.core_life.begin()

    await asyncio.wait_for(waking, 60)
    assert server.began.is_set()


async def test_where_no_core_will_come_calls_go_elsewhere() -> None:
    server = Server()
    await server.core_life.end_calls(60)
    call = asyncio.create_task(answers(server))
    await asyncio.sleep(0)

    server.core_life.end()

    with pytest.raises(EngineUnavailableError):
        await call
    with pytest.raises(EngineUnavailableError):
        await answers(server)
    with pytest.raises(EngineUnavailableError):
        server.core_life.require_hope()


async def test_a_core_starts_once_the_calls_of_the_dead_one_have_ended() -> None:
    server = Server()
    call = asyncio.create_task(answers(server))
    await server.began.wait()

    with pytest.raises(TimeoutError):
        await server.core_life.end_calls(0.05)
    ending = asyncio.create_task(server.core_life.end_calls(60))
    await asyncio.sleep(0)
    assert not ending.done()
    server.may_answer.set()
    await ending

    assert await call == [[(0, (200, b"a", 0))]]


async def test_a_call_that_is_given_up_is_no_call_any_more() -> None:
    server = Server()
    call = asyncio.create_task(answers(server))
    await server.began.wait()

    call.cancel()

    await server.core_life.end_calls(60)


async def test_calls_do_not_wait_for_a_core_where_other_replicas_have_theirs() -> None:
    life = CoreLife(is_only_one=False)
    await life.end_calls(60)

    with pytest.raises(EngineUnavailableError):
        await life.wait(["batch_1"])

    life.begin()
    assert await life.wait(["batch_1"]) == {"batch_1"}


async def test_a_pause_ends_calls_that_wait_for_a_core_with_this_batch_alone() -> None:
    server = Server()
    server.may_answer.set()
    await server.core_life.end_calls(60)
    alone = asyncio.create_task(answers(server, WORK, WORK))
    beside = asyncio.create_task(answers(server, WORK, OTHER))
    await asyncio.sleep(0.05)

    server.core_life.withdraw("batch_1")

    # No core is needed for that.
    assert await asyncio.wait_for(alone, 60) == []
    assert not beside.done()
    # What is asked after the pause is meant.
    again = asyncio.create_task(answers(server, WORK))
    await asyncio.sleep(0.05)
    server.core_life.begin()
    assert await beside == [[(1, (200, b"b", 0))]]
    assert await again == [[(0, (200, b"a", 0))]]
