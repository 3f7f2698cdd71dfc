"""Where the time of a small batch goes."""

import json

from benchmarks.lane_steps import STEPS, claimed_at, taken


def test_each_step_takes_from_the_end_of_the_one_before_it() -> None:
    moments = {step: float(number**2) for number, step in enumerate(STEPS, start=1)}

    assert list(taken(moments).values()) == [1, 3, 5, 7, 9, 11, 13, 15]
    assert sum(taken(moments).values()) == moments["told"]


def test_a_batch_is_claimed_when_its_first_slice_starts() -> None:
    def line(second: int, batch_id: str, event: str = "slice.started") -> str:
        at = f"2026-01-01T00:00:{second:02}.500000Z"
        return json.dumps({"batch_id": batch_id, "event": event, "timestamp": at})

    log = [line(1, "b", "other"), "no JSON", line(2, "a"), line(3, "b"), line(4, "a")]

    found = claimed_at(log)

    assert found.keys() == {"a", "b"}
    assert found["b"] - found["a"] == 1.0
