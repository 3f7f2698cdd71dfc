import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared import ids
from shared.ledger.merging import as_stream as lines_of
from shared.ledger.merging import chunked, merged, stretches
from shared.slices import PlannedSlice, Slice

BATCH = "batch_" + "ab" * 16


def line(row: int, size: int = 0) -> bytes:
    return f'{{"id":"{ids.result_id(BATCH, row)}","x":"{"y" * size}"}}\n'.encode()


@given(st.lists(st.sampled_from([0, 1, 2, 3]), max_size=60))
def test_lines_dealt_to_several_streams_come_back_in_order(dealt: list[int]) -> None:
    hands = [[line(row) for row, to in enumerate(dealt) if to == hand] for hand in range(4)]

    async def merge() -> list[bytes]:
        return [one async for one in merged([lines_of(hand) for hand in hands])]

    assert asyncio.run(merge()) == [line(row) for row in range(len(dealt))]


async def test_only_one_line_of_each_stream_is_kept() -> None:
    taken = [0, 0]

    async def stream(number: int) -> AsyncGenerator[bytes, None]:
        for row in range(number, 1000, 2):
            taken[number] += 1
            yield line(row)

    found = merged([stream(0), stream(1)])
    for count in range(1, 101):
        assert await anext(found) == line(count - 1)
        # One ahead of what was given, of each.
        assert sum(taken) <= count + 1
    await found.aclose()


async def test_a_stream_that_breaks_closes_the_others() -> None:
    closed = asyncio.Event()

    async def endless() -> AsyncGenerator[bytes, None]:
        try:
            await asyncio.sleep(0)
            for row in range(1000):
                yield line(row)
        finally:
            closed.set()

    async def broken() -> AsyncGenerator[bytes, None]:
        raise ValueError("gone")
        yield b""

    with pytest.raises(ValueError, match="gone"):
        [one async for one in merged([endless(), broken()])]
    assert closed.is_set()


async def test_chunks_are_small_and_hold_every_line() -> None:
    lines = [line(row, size=1000) for row in range(500)]

    chunks = [chunk async for chunk in chunked(lines_of(lines))]

    assert [one for chunk in chunks for one in chunk] == lines
    assert max(sum(map(len, chunk)) for chunk in chunks) < 70_000


async def test_the_slices_of_a_stretch_come_together() -> None:
    first_rows = [0, 0, 4, 8, 8, 8]

    async def planned() -> AsyncIterator[PlannedSlice]:
        for index, first_row in enumerate(first_rows):
            yield PlannedSlice(index, Slice(0, 9, first_row, 1, 1), None)

    found = [[one.index for one in stretch] async for stretch in stretches(planned())]

    assert found == [[0, 1], [2], [3, 4, 5]]
