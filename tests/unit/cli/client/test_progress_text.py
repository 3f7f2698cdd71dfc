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
    text = progress_text("in.jsonl", _batch(), _pace(), now=20)

    assert text == "in.jsonl: in_progress, 40/100 rows, 2 failed, 2.0 rows/s, about 30 s left"


def test_the_gateways_own_estimate_widens_the_range() -> None:
    text = progress_text("in.jsonl", _batch(remaining_seconds=50), _pace(), now=20)

    assert text.endswith("30 to 50 s left")


def test_a_batch_without_a_rate_says_what_it_waits_for() -> None:
    explanation = {
        "waits_for": {"code": "engine_starting", "message": "The engine is loading its model."},
        "predicted": {"start_at": 1060, "finish_at": 1300},
    }

    why = waiting_text(explanation, now=1000)

    assert why == "The engine is loading its model, 100 s to 15 min left (predicted)"
    assert progress_text("x", _batch(), Pace(), now=0, why=why).endswith(why)


def test_a_batch_that_has_ended_has_neither() -> None:
    text = progress_text("x", _batch("completed"), _pace(), now=20, why="not this")

    assert text == "x: completed, 40/100 rows, 2 failed"
