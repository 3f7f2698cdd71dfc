from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.slices import Slice
from shared.slicing import SliceLimits, Slicer


def cut(widths: list[int], tokens: list[int], limits: SliceLimits) -> list[Slice]:
    slicer, slices, start = Slicer(limits), list[Slice](), 0
    for width, count in zip(widths, tokens, strict=True):
        slices += slicer.add(start, start + width, count)
        start += width
    return [*slices, *slicer.finish()]


def test_a_slice_ends_at_its_row_limit() -> None:
    slices = cut([10] * 5, [1] * 5, SliceLimits(rows=2))

    assert [
        Slice(0, 20, 0, 2, 2),
        Slice(20, 40, 2, 2, 2),
        Slice(40, 50, 4, 1, 1),
    ] == slices


def test_a_slice_ends_before_its_token_limit_is_passed() -> None:
    slices = cut([1, 1, 1], [60, 60, 10], SliceLimits(tokens=100))

    assert [1, 2] == [slice_.rows for slice_ in slices]


def test_a_row_larger_than_every_limit_is_a_slice_of_its_own() -> None:
    slices = cut([1, 900, 1], [1, 9000, 1], SliceLimits(tokens=100, bytes=100))

    assert [1, 1, 1] == [slice_.rows for slice_ in slices]


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), max_size=60),
    st.integers(1, 8),
    st.integers(1, 100),
)
def test_slices_cover_every_row_once_in_order(
    rows: list[tuple[int, int]], max_rows: int, max_tokens: int
) -> None:
    widths, tokens = [row[0] for row in rows], [row[1] for row in rows]

    slices = cut(widths, tokens, SliceLimits(rows=max_rows, tokens=max_tokens))

    assert sum(widths) == sum(slice_.end - slice_.start for slice_ in slices)
    assert sum(tokens) == sum(slice_.tokens for slice_ in slices)
    next_row = next_byte = 0
    for slice_ in slices:
        assert (next_row, next_byte) == (slice_.first_row, slice_.start)
        assert 0 < slice_.rows <= max_rows
        next_row, next_byte = next_row + slice_.rows, slice_.end
    assert next_row == len(rows)


def test_lanes_that_take_turns_have_a_slice_each_in_every_stretch() -> None:
    slicer = Slicer(SliceLimits(rows=2))

    slices = [
        slice_
        for row, lane in enumerate([0, 1, 1, 0, 1, 0, 0])
        for slice_ in slicer.add(row * 10, row * 10 + 10, 5, lane)
    ]
    slices += slicer.finish()

    assert slices == [
        # The fifth row would be the third of lane 1: there the stretch ends.
        Slice(0, 40, 0, 2, 10, 0, "9"),
        Slice(10, 30, 0, 2, 10, 1, "6"),
        Slice(40, 50, 4, 1, 5, 1, "1"),
        Slice(50, 70, 4, 2, 10, 0, "6"),
    ]


def test_a_stretch_of_one_lane_needs_no_mask() -> None:
    slicer = Slicer(SliceLimits(rows=2))

    slices = [
        slice_
        for row, lane in enumerate([1, 1, 1])
        for slice_ in slicer.add(row * 10, row * 10 + 10, 5, lane)
    ]

    assert slices == [Slice(0, 20, 0, 2, 10, 1)]


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50), st.integers(0, 3)), max_size=80),
    st.integers(1, 8),
    st.integers(1, 200),
    st.integers(1, 400),
)
def test_slices_of_several_lanes_cover_every_row_once_within_the_limits(
    rows: list[tuple[int, int, int]], max_rows: int, max_tokens: int, max_bytes: int
) -> None:
    limits = SliceLimits(rows=max_rows, tokens=max_tokens, bytes=max_bytes)
    slicer, slices, places = Slicer(limits), list[Slice](), list[tuple[int, int]]()
    start = 0
    for width, tokens, lane in rows:
        slices += slicer.add(start, start + width, tokens, lane)
        places.append((start, start + width))
        start += width
    slices += slicer.finish()

    covered = [number for slice_ in slices for number in slice_.row_numbers]
    assert sorted(covered) == list(range(len(rows)))
    for slice_ in slices:
        numbers = slice_.row_numbers
        assert {rows[number][2] for number in numbers} == {slice_.lane}
        assert (slice_.start, slice_.end) == (places[numbers[0]][0], places[numbers[-1]][1])
        assert slice_.rows == len(numbers) <= max_rows
        assert slice_.tokens == sum(rows[number][1] for number in numbers)
        assert slice_.tokens <= max_tokens or slice_.rows == 1
        assert slice_.end - slice_.start <= max_bytes or slice_.rows == 1
    # Stretches follow each other, and no lane has two slices in one.
    firsts = [slice_.first_row for slice_ in slices]
    assert firsts == sorted(firsts)
    assert len({(slice_.first_row, slice_.lane) for slice_ in slices}) == len(slices)
    for before, slice_ in pairwise(slices):
        if before.first_row != slice_.first_row:
            assert max(before.row_numbers) < slice_.first_row


@pytest.mark.parametrize(
    ("seats", "most", "rows"), [(8, 512, 128), (100, 512, 200), (256, 512, 512), (1024, 100, 100)]
)
def test_a_slice_has_no_more_rows_than_an_engine_has_at_hand(
    seats: int, most: int, rows: int
) -> None:
    assert SliceLimits(rows=most).of_engine(seats).rows == rows
