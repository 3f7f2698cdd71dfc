from worker.giving_back import LATER_SECONDS, PATIENCE_SECONDS, GivingBack

SEATS = 64


def an_engine_of_people(*, free: int = 1) -> GivingBack:
    """One in which rows have had next to nothing since 0.0, and so many others have room."""
    one = GivingBack(SEATS)
    one.see(1, 0.0)
    one.know_free(free, 0.0)
    return one


def test_rows_are_given_back_after_a_while_and_those_that_come_later_soon() -> None:
    one = an_engine_of_people()

    assert not one.is_due(PATIENCE_SECONDS / 2)
    assert one.is_due(PATIENCE_SECONDS)
    assert not one.is_due(PATIENCE_SECONDS + LATER_SECONDS / 2)
    assert one.is_due(PATIENCE_SECONDS + 1.1 * LATER_SECONDS)
    assert one.has_begun


def test_rows_stay_where_live_calls_leave_them_seats() -> None:
    one = an_engine_of_people()
    one.see(SEATS // 2, PATIENCE_SECONDS)

    assert not one.is_due(PATIENCE_SECONDS)
    assert not one.has_begun


def test_rows_stay_where_no_other_engine_has_room_or_none_is_known_to() -> None:
    assert not an_engine_of_people(free=0).is_due(PATIENCE_SECONDS)
    assert not an_engine_of_people().is_due(60.0)
