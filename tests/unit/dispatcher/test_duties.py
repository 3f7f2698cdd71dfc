import pytest

from dispatcher.duties import retry_pause_seconds
from shared.errors import TransientError

OUTAGE, BUG = TransientError("Ray cannot be reached"), ValueError("a bug")


@pytest.mark.parametrize("error", [OUTAGE, BUG])
def test_a_duty_that_failed_once_is_tried_again_after_two_seconds(error: Exception) -> None:
    assert retry_pause_seconds(error, 1) == 2.0


def test_however_long_an_outage_was_its_duties_go_on_within_seconds_of_its_end() -> None:
    assert {retry_pause_seconds(OUTAGE, failures) for failures in range(2, 1000)} == {4.0}


def test_a_bug_is_met_ever_more_seldom() -> None:
    pauses = [retry_pause_seconds(BUG, failures) for failures in range(1, 1000)]

    assert pauses == sorted(pauses)
    assert (pauses[3], pauses[-1]) == (16.0, 60.0)
