from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st

from worker.front_link import Row
from worker.front_rows import KEPT_SECONDS, FrontRows

AT_A_TIME = 4


def rows_waiting(count: int) -> FrontRows:
    rows = FrontRows(AT_A_TIME)
    for number in range(count):
        rows.add(Row(number, b"{}"))
    return rows


def numbers(rows: Iterable[Row]) -> list[int]:
    return [row.number for row in rows]


def test_a_few_begin_at_a_time_in_the_order_of_their_coming() -> None:
    rows = rows_waiting(AT_A_TIME + 1)

    assert numbers(rows.take(0.0)) == list(range(AT_A_TIME))
    assert numbers(rows.take(0.0)) == [AT_A_TIME]
    assert rows.take(0.0) == []


def test_a_row_of_a_small_batch_begins_before_those_that_came_before_it() -> None:
    rows = rows_waiting(AT_A_TIME)
    rows.add(Row(99, b"{}", is_first=True))

    assert numbers(rows.take(0.0)) == [99, *range(AT_A_TIME - 1)]


def test_one_that_nobody_wants_any_more_does_not_begin() -> None:
    rows = rows_waiting(2)
    rows.forget(0)
    rows.forget(77)

    assert numbers(rows.take(0.0)) == [1]


def test_what_rows_send_is_kept_for_a_while_as_long_as_others_wait() -> None:
    rows = rows_waiting(100 * AT_A_TIME)
    rows.take(0.0)
    assert rows.are_kept
    rows.take(KEPT_SECONDS)
    assert not rows.are_kept

    rows.take(KEPT_SECONDS)
    assert rows.are_kept
    while rows:
        rows.take(KEPT_SECONDS)
    assert not rows.are_kept


def test_what_a_row_of_a_small_batch_sends_is_not_kept() -> None:
    rows = rows_waiting(100 * AT_A_TIME)
    rows.take(0.0)
    rows.add(Row(999, b"{}", is_first=True))

    rows.take(0.0)
    assert not rows.are_kept
    # It has sent something since.
    rows.take(0.0)
    assert not rows.are_kept
    rows.take(0.0)
    assert rows.are_kept


@given(st.lists(st.tuples(st.sampled_from(["add", "first", "forget", "take"]), st.integers(0, 30))))
def test_each_begins_once_unless_nobody_wants_it(steps: list[tuple[str, int]]) -> None:
    rows, waiting, begun = FrontRows(AT_A_TIME), set[int](), list[int]()
    came = 0
    for what, which in steps:
        match what:
            case "add" | "first":
                rows.add(Row(came, b"{}", what == "first"))
                waiting.add(came)
                came += 1
            case "forget":
                rows.forget(which)
                waiting.discard(which)
            case _:
                taken = numbers(rows.take(float(which)))
                assert set(taken) <= waiting
                waiting.difference_update(taken)
                begun += taken
        assert len(rows) == len(waiting)
    while rows:
        begun += numbers(rows.take(0.0))
    assert len(begun) == len(set(begun))
    assert not rows.are_kept
