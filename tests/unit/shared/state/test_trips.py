import asyncio
from collections.abc import Sequence

import pytest

from shared.state.trips import Command, Trips


class Line:
    """Answers commands with their own names, and remembers what was sent together."""

    def __init__(self) -> None:
        self.sent: list[list[str]] = []
        self.is_open = asyncio.Event()
        self.is_open.set()

    async def send(self, commands: Sequence[Command]) -> Sequence[object]:
        self.sent.append([command.args[0] for command in commands])
        await self.is_open.wait()
        return [self._answer(command.args[0]) for command in commands]

    @staticmethod
    def _answer(name: str) -> object:
        return ValueError("refused") if name == "wrong" else name


def call(trips: Trips, name: str) -> asyncio.Task[object]:
    return asyncio.create_task(trips.call(Command((name,), {})))


async def test_commands_of_one_moment_share_a_round_trip() -> None:
    line = Line()
    trips = Trips(line.send)

    answers = await asyncio.gather(*(call(trips, name) for name in ("a", "b", "c")))

    assert answers == ["a", "b", "c"]
    assert line.sent == [["a", "b", "c"]]


async def test_a_round_trip_that_takes_long_does_not_hold_up_the_next() -> None:
    line = Line()
    trips = Trips(line.send)
    line.is_open.clear()
    slow = call(trips, "slow")
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    quick = call(trips, "quick")
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert line.sent == [["slow"], ["quick"]]
    line.is_open.set()
    assert [await slow, await quick] == ["slow", "quick"]


async def test_a_refused_command_says_so_to_its_caller_alone() -> None:
    trips = Trips(Line().send)

    refused, other = await asyncio.gather(
        call(trips, "wrong"), call(trips, "a"), return_exceptions=True
    )

    assert isinstance(refused, ValueError)
    assert other == "a"


async def test_a_lost_connection_reaches_every_caller() -> None:
    async def lose(_: Sequence[Command]) -> Sequence[object]:
        raise ConnectionError

    trips = Trips(lose)

    found = await asyncio.gather(call(trips, "a"), call(trips, "b"), return_exceptions=True)

    assert [type(one) for one in found] == [ConnectionError, ConnectionError]


async def test_a_caller_that_is_cancelled_does_not_cancel_the_others() -> None:
    line = Line()
    trips = Trips(line.send)
    line.is_open.clear()
    one, other = call(trips, "one"), call(trips, "other")
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    one.cancel()
    line.is_open.set()

    with pytest.raises(asyncio.CancelledError):
        await one
    assert await other == "other"


async def test_what_nobody_waits_for_is_not_sent() -> None:
    line = Line()
    trips = Trips(line.send)
    gone = call(trips, "gone")
    await asyncio.sleep(0)

    gone.cancel()

    assert await call(trips, "kept") == "kept"
    assert line.sent == [["kept"]]


async def test_the_end_cancels_the_callers() -> None:
    line = Line()
    trips = Trips(line.send)
    line.is_open.clear()
    waiting = call(trips, "a")
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    await trips.end()

    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_the_end_cancels_the_callers_of_a_trip_that_has_not_begun() -> None:
    trips = Trips(Line().send)
    waiting = call(trips, "a")
    await asyncio.sleep(0)

    await trips.end()

    with pytest.raises(asyncio.CancelledError):
        await waiting
