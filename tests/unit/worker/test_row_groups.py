import asyncio
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Any

from worker.row_groups import in_groups

_LONG = 60.0


async def test_rows_that_end_at_the_same_moment_share_a_group() -> None:
    async def row(number: int) -> str:
        await asyncio.sleep(0)
        return f"answer {number}"

    found = [group async for group in in_groups(map(row, range(16)), seconds=_LONG)]

    assert found == [[(number, f"answer {number}") for number in range(16)]]


async def test_a_row_waits_for_a_slow_one_no_longer_than_the_seconds() -> None:
    slow = asyncio.Event()

    async def row(number: int) -> int:
        if number == 1:
            await slow.wait()
        return number

    async with aclosing(in_groups(map(row, range(3)), seconds=0.001)) as groups:
        first = await anext(groups)
        slow.set()
        rest = [group async for group in groups]

    assert first == [(0, 0), (2, 2)]
    assert rest == [[(1, 1)]]


async def test_no_rows_make_no_group() -> None:
    none: list[Coroutine[Any, Any, int]] = []

    assert [group async for group in in_groups(none, seconds=_LONG)] == []


async def test_closing_cancels_the_rows_that_run_and_waits_for_their_ends() -> None:
    ended = []

    async def row(number: int) -> int:
        try:
            await asyncio.Event().wait() if number else None
        finally:
            await asyncio.sleep(0)
            ended.append(number)
        return number

    async with aclosing(in_groups(map(row, range(3)), seconds=0.001)) as groups:
        await anext(groups)

    assert sorted(ended) == [0, 1, 2]
