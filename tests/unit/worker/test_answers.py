import asyncio

import pytest

from worker.answers import Answers
from worker.engine_errors import Result


class Rows:
    """Counts how often a row is run; rows wait until they are told to end."""

    def __init__(self) -> None:
        self.runs = 0
        self.cancelled = 0
        self.ending = asyncio.Event()

    async def run(self) -> Result:
        self.runs += 1
        try:
            await self.ending.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return 200, b"x" * 100


def some_answers(**changes: float) -> Answers[None]:
    settings = {"max_bytes": 1000, "seconds": 60, **changes}
    return Answers[None](max_bytes=int(settings["max_bytes"]), seconds=settings["seconds"])


async def test_a_row_that_is_asked_for_again_does_not_run_again() -> None:
    answers, rows = some_answers(), Rows()
    rows.ending.set()

    first = await answers.ask("row", rows.run)
    second = await answers.ask("row", rows.run)

    assert first == second == (200, b"x" * 100)
    assert rows.runs == 1


async def test_a_row_that_runs_is_joined_and_ends_for_all_who_wait() -> None:
    answers, rows = some_answers(), Rows()
    asking = [answers.ask("row", rows.run) for _ in range(3)]
    await asyncio.sleep(0)
    asking[0].cancel()
    await asyncio.wait(asking[:1])
    rows.ending.set()

    assert await asyncio.gather(*asking[1:]) == [(200, b"x" * 100)] * 2
    assert (rows.runs, rows.cancelled) == (1, 0)


async def test_a_row_for_which_nobody_waits_is_cancelled_and_may_run_later() -> None:
    answers, rows = some_answers(), Rows()
    asking = answers.ask("row", rows.run)
    await asyncio.sleep(0)

    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await asyncio.sleep(0)

    assert rows.cancelled == 1
    rows.ending.set()
    assert await answers.ask("row", rows.run) == (200, b"x" * 100)


async def test_why_there_is_no_answer_is_told_and_not_kept() -> None:
    answers, rows = some_answers(), Rows()
    rows.ending.set()

    async def refuse() -> None:
        return None

    assert await answers.ask("row", refuse) is None
    assert await answers.ask("row", rows.run) == (200, b"x" * 100)


async def test_a_run_that_breaks_says_so_to_all_who_asked() -> None:
    answers = some_answers()

    async def break_() -> Result:
        await asyncio.sleep(0)
        raise RuntimeError("broken")

    asking = [answers.ask("row", break_) for _ in range(2)]

    ends = await asyncio.gather(*asking, return_exceptions=True)
    assert [str(end) for end in ends] == ["broken"] * 2


async def test_no_more_than_the_bytes_are_kept_the_newest() -> None:
    answers, rows = some_answers(max_bytes=250), Rows()
    rows.ending.set()
    for row in (1, 2, 3, 4):
        await answers.ask(row, rows.run)

    for row in (4, 3, 1):
        await answers.ask(row, rows.run)

    assert rows.runs == 5


async def test_no_answer_is_kept_for_longer_than_the_seconds() -> None:
    now, rows = 0.0, Rows()
    answers = Answers[None](max_bytes=1000, seconds=60, clock=lambda: now)
    rows.ending.set()
    await answers.ask("row", rows.run)

    now = 61.0
    await answers.ask("row", rows.run)

    assert rows.runs == 2


async def test_the_error_of_a_server_is_not_kept() -> None:
    answers, runs = some_answers(), 0

    async def fail() -> Result:
        nonlocal runs
        runs += 1
        return 500, b"{}"

    for _ in range(2):
        assert await answers.ask("row", fail) == (500, b"{}")

    assert runs == 2
