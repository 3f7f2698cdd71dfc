import json

from hypothesis import given
from hypothesis import strategies as st

from shared.slices import Copy, Slice, mask_of, to_slice


def test_a_slice_alone_in_its_stretch_is_kept_as_five_numbers() -> None:
    assert json.loads(Slice(0, 100, 7, 3, 10).to_text()) == [0, 100, 7, 3, 10]


@given(st.sets(st.integers(0, 300), min_size=1), st.integers(0, 9), st.integers(0, 10**6))
def test_a_mask_names_rows_and_survives_redis(rows: set[int], lane: int, first_row: int) -> None:
    mask = sum(1 << row for row in rows)
    slice_ = to_slice(Slice(5, 6, first_row, len(rows), 1, lane, f"{mask:x}").to_text())

    assert slice_.row_numbers == [first_row + row for row in sorted(rows)]
    # Its bytes begin with its first row and end with its last one.
    between = range(slice_.row_numbers[0], slice_.row_numbers[-1] + 1)
    assert slice_.pick(between) == slice_.row_numbers


@given(st.sets(st.integers(0, 5000), min_size=1, max_size=100))
def test_a_mask_takes_a_few_characters_a_row_however_far_apart_they_are(rows: set[int]) -> None:
    ordered = sorted(rows)
    slice_ = Slice(5, 6, 0, len(rows), 1, mask=mask_of(ordered), copy=Copy("a-1", 7, 9))

    assert to_slice(slice_.to_text()) == slice_
    assert slice_.row_numbers == ordered
    assert len(slice_.mask) <= 5 * len(rows)
