import pytest

from worker.engine_errors import (
    EngineFailedError,
    EngineGoneError,
    EngineHungError,
    EngineUnavailableError,
)
from worker.outcomes import Outcome, outcome, public_reason, worst


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (EngineFailedError("x"), Outcome.LANE_FAILED),
        (EngineUnavailableError("x"), Outcome.UNSEEN),
        (EngineGoneError("x"), Outcome.STRUCK),
        (EngineHungError("x"), Outcome.STRUCK),
        (ValueError("x"), Outcome.STRUCK),
    ],
)
def test_an_error_says_what_becomes_of_the_slice(error: Exception, expected: Outcome) -> None:
    assert outcome(error) is expected


def test_a_lane_that_failed_outweighs_a_death_and_a_death_an_engine_that_is_away() -> None:
    failed, gone, away = EngineFailedError("f"), EngineGoneError("g"), EngineUnavailableError("u")

    assert worst([away, gone, failed]) is failed
    assert worst([away, gone]) is gone
    assert worst([away]) is away


def test_the_text_of_a_foreign_error_is_not_passed_on() -> None:
    assert public_reason(EngineGoneError("It died.")) == "It died."
    assert "my prompt" not in public_reason(ValueError("my prompt"))
