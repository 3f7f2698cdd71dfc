import pytest

from dispatcher.row_check import IncompleteError, RowCheck
from shared import ids

_BATCH = "batch_" + "0" * 32


def _lines(*rows: int) -> bytes:
    return b"".join(b'{"id":"%s"}\n' % ids.result_id(_BATCH, row).encode() for row in rows)


def test_rows_that_each_have_one_line_are_complete_in_any_order() -> None:
    check = RowCheck(3)

    check.add_lines(_lines(2, 0))
    assert [row in check for row in range(3)] == [True, False, True]
    check.add_lines(_lines(1))

    check.finish(_BATCH)


@pytest.mark.parametrize(
    ("rows", "problem"),
    [((0, 2), "row 1 has no result"), ((0, 1, 1, 2), "row 1 has two"), ((0, 1, 2, 3), "row 3")],
)
def test_a_row_without_a_line_or_with_two_is_named(rows: tuple[int, ...], problem: str) -> None:
    check = RowCheck(3)
    check.add_lines(_lines(*rows))

    with pytest.raises(IncompleteError, match=problem):
        check.finish(_BATCH)
