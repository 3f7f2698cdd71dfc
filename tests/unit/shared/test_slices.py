import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shared.slices import (
    Copy,
    Part,
    RowCounts,
    Slice,
    SliceUsage,
    labelled_part,
    mask_of,
    new_part,
    part_label,
    to_part,
    to_slice,
)


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


_USAGE = SliceUsage(2, 1, 30, 2, 20, 3)


@given(st.binary(max_size=50), st.binary(max_size=50))
def test_a_part_is_known_again_by_its_label(output: bytes, error: bytes) -> None:
    for counts in (RowCounts(), RowCounts(2, 3)):
        part = new_part("k", output, error, _USAGE, {"gpu": 7}, counts)

        found = labelled_part("k", "", len(output + error), part_label(part))

        assert found == part == to_part(json.dumps(part))
    part = new_part("k", output, error, _USAGE)
    found = labelled_part("k", "", len(output + error), part_label(part))
    assert found == part == to_part(json.dumps(part))
    assert found.fits(output + error)


@given(st.binary(min_size=1, max_size=50), st.binary(max_size=50), st.data())
def test_a_part_with_a_flipped_bit_does_not_fit(
    output: bytes, error: bytes, data: st.DataObject
) -> None:
    damaged = bytearray(output + error)
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1

    assert not new_part("k", output, error, _USAGE).fits(bytes(damaged))


@given(st.data())
def test_a_damaged_label_is_refused(data: st.DataObject) -> None:
    label = part_label(new_part("k", b"12345", b"67", _USAGE))
    place = data.draw(st.integers(0, len(label) - 1))
    digit = data.draw(st.sampled_from("0123456789abcdef"))
    damaged = label[:place] + digit + label[place + 1 :]
    assume(damaged != label)

    with pytest.raises(ValueError, match=r"."):
        labelled_part("k", "e", 7, damaged)


def test_an_object_that_was_cut_off_does_not_belong_to_its_label() -> None:
    label = part_label(new_part("k", b"12345", b"67", _USAGE))

    with pytest.raises(ValueError, match="6 bytes instead of 7"):
        labelled_part("k", "e", 6, label)


def test_a_part_of_a_version_without_checksums_fits_by_its_length() -> None:
    part = labelled_part("k", "e", 7, "5 3 2 1 30 2 20 3")

    assert part == Part("k", "e", 5, 2, 3, _USAGE)
    assert to_part(json.dumps(part[:6])) == part
    assert part.fits(b"1234567")
    assert not part.fits(b"123456")
