from typing import Any

import pytest
from openai.types import Batch

from cli.demo.batches import Job


def _batch(status: str, *, done: int = 0) -> Batch:
    fields: dict[str, Any] = {
        "id": "batch_1",
        "object": "batch",
        "endpoint": "/v1/embeddings",
        "completion_window": "24h",
        "created_at": 0,
        "input_file_id": "file-1",
        "status": status,
        "request_counts": {"total": 10, "completed": done, "failed": 0},
    }
    return Batch(**fields)


def _job() -> Job:
    return Job("embeddings", _batch("validating"), 10, "the engine starts")


@pytest.mark.parametrize(
    ("batch", "note"),
    [
        (_batch("validating"), "the dispatcher checks the input"),
        (_batch("in_progress"), "the engine starts"),
        (_batch("in_progress", done=3), ""),
        (_batch("finalizing", done=10), "the output is written"),
        (_batch("failed"), "failed"),
    ],
)
def test_the_note_says_what_the_batch_waits_for(batch: Batch, note: str) -> None:
    assert note == _job().learn(batch).note


def test_the_rate_counts_from_the_first_result_and_not_from_the_start_of_the_engine() -> None:
    job = _job()

    first = job.learn(_batch("in_progress", done=4))
    second = job.learn(_batch("in_progress", done=8))

    assert first.rows_per_second is None
    assert second.rows_per_second is not None
    assert job.seconds_to_first_result <= job.seconds


def test_a_job_ends_once() -> None:
    job = _job()
    job.learn(_batch("completed", done=10))
    ended_at = job.ended_at

    job.learn(_batch("completed", done=10))

    assert ended_at is not None
    assert ended_at == job.ended_at
