from typing import Any

from cli.client.pace import Pace
from cli.client.progress_text import progress_text, waiting_text


def _batch(status: str = "in_progress", **changes: Any) -> dict[str, Any]:
    counts = {"total": 100, "completed": 38, "failed": 2}
    return {"status": status, "request_counts": counts, **changes}


def _pace() -> Pace:
    pace = Pace()
    pace.note(0, at=0)
    pace.note(40, at=20)
    return pace


def test_a_running_batch_has_rate_range_and_failures() -> None:
    text = progress_text("in.jsonl", _batch(), _pace(), now=20, at=1000)

    assert text == "in.jsonl: in_progress, 40/100 rows, 2 failed, 2.0 rows/s, about 30 s left"


def test_the_gateways_range_counts_before_the_pace_that_is_seen_from_here() -> None:
    predicted = {"finish_at": 1040, "finish_p80_at": 1060}

    text = progress_text("in.jsonl", _batch(predicted=predicted), _pace(), now=20, at=1000)

    assert text.endswith("40 to 60 s left")


def test_a_batch_without_a_rate_says_what_it_waits_for() -> None:
    explanation = {
        "waits_for": {"code": "engine_starting", "message": "The engine is loading its model."},
        "predicted": {"start_at": 1060, "finish_at": 1300, "finish_p80_at": 1600},
    }

    why = waiting_text(explanation, now=1000)

    assert why == "The engine is loading its model, 5 to 10 min left (predicted)"
    assert progress_text("x", _batch(), Pace(), now=0, why=why, at=1000).endswith(why)


def test_a_batch_that_has_ended_has_neither() -> None:
    text = progress_text("x", _batch("completed"), _pace(), now=20, why="not this", at=1000)

    assert text == "x: completed, 40/100 rows, 2 failed"
