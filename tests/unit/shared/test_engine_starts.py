"""The stages of a start, and the whole that they sum up to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.engine_starts import STAGES, Start, whole_start


def test_what_no_stage_has_is_called_other() -> None:
    start = Start({"process": 3.0, "core": 10.0, "imports": 12.0})

    whole = whole_start(start, 30)

    assert list(whole.items()) == [("process", 3), ("imports", 12), ("core", 10), ("other", 5)]


def test_a_process_that_was_there_before_the_start_counts_only_from_there() -> None:
    assert whole_start(Start({"process": 600.0, "core": 10.0}), 12) == {
        "process": 2,
        "core": 10,
        "other": 0,
    }


_SECONDS = st.floats(0, 1000)


@given(st.dictionaries(st.sampled_from(STAGES), _SECONDS), _SECONDS)
def test_stages_sum_up_to_the_whole_or_to_what_the_replica_measured(
    stages: dict[str, float], seconds: float
) -> None:
    whole = whole_start(Start(stages), seconds)

    rest = sum(taken for stage, taken in stages.items() if stage != "process")
    assert sum(whole.values()) == pytest.approx(max(seconds, rest))
    assert min(whole.values()) >= 0
    assert {**whole, "process": 0, "other": 0} == {**stages, "process": 0, "other": 0}
