from hypothesis import given
from hypothesis import strategies as st

from dispatcher.slicing import SliceLimits, Slicer
from shared.slices import Slice


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

    assert [1, 2] == [piece.rows for piece in slices]


def test_a_row_larger_than_every_limit_is_a_slice_of_its_own() -> None:
    slices = cut([1, 900, 1], [1, 9000, 1], SliceLimits(tokens=100, bytes=100))

    assert [1, 1, 1] == [piece.rows for piece in slices]


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(0, 50)), max_size=60),
    st.integers(1, 8),
    st.integers(1, 100),
)
def test_slices_cover_every_row_once_in_order(
    rows: list[tuple[int, int]], most_rows: int, most_tokens: int
) -> None:
    widths, tokens = [row[0] for row in rows], [row[1] for row in rows]

    slices = cut(widths, tokens, SliceLimits(rows=most_rows, tokens=most_tokens))

    assert sum(widths) == sum(piece.end - piece.start for piece in slices)
    assert sum(tokens) == sum(piece.tokens for piece in slices)
    next_row = next_byte = 0
    for piece in slices:
        assert (next_row, next_byte) == (piece.first_row, piece.start)
        assert 0 < piece.rows <= most_rows
        next_row, next_byte = next_row + piece.rows, piece.end
    assert next_row == len(rows)
