"""Batches through the official client: upload, create, follow to the end, fetch."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from openai import OpenAI
from openai.types import Batch

from cli.demo.screen import ProgressLine, Screen
from shared.errors import SetupError

_POLL_SECONDS = 0.2
_FINAL = ("completed", "failed", "expired", "cancelled")

Endpoint = Literal["/v1/embeddings", "/v1/chat/completions"]


@dataclass
class Job:
    """One batch of the demo; times are of the monotonic clock, None until they come."""

    name: str
    batch: Batch
    rows: int
    #: What the screen shows while there is no result yet.
    first_wait: str
    created_at: float = field(default_factory=time.monotonic)
    first_result_at: float | None = None
    ended_at: float | None = None
    _first_done: int = 0

    @property
    def seconds(self) -> float:
        """From its creation to its end."""
        return (self.ended_at or time.monotonic()) - self.created_at

    @property
    def seconds_to_first_result(self) -> float:
        """From its creation until the first row was seen done."""
        return (self.first_result_at or self.ended_at or time.monotonic()) - self.created_at

    def learn(self, batch: Batch) -> ProgressLine:
        """Take the newest state of the batch."""
        self.batch = batch
        now, done = time.monotonic(), 0
        if batch.request_counts is not None:
            done = batch.request_counts.completed + batch.request_counts.failed
        if done and self.first_result_at is None:
            self.first_result_at, self._first_done = now, done
        if batch.status in _FINAL and self.ended_at is None:
            self.ended_at = now
        rate = None
        if self.first_result_at is not None and done > self._first_done:
            rate = (done - self._first_done) / (now - self.first_result_at)
        return ProgressLine(done, rate, self._note(done))

    def _note(self, done: int) -> str:
        match self.batch.status:
            case "validating":
                return "the dispatcher checks the input"
            case "in_progress":
                return "" if done else self.first_wait
            case "finalizing":
                return "the output is written"
            case other:
                return str(other)


def write_requests(path: Path, endpoint: Endpoint, bodies: Mapping[str, Mapping[str, Any]]) -> Path:
    """A batch's input file: one request a line, by custom id."""
    with path.open("w", encoding="utf-8") as file:
        for custom_id, body in bodies.items():
            request = {
                "custom_id": custom_id,
                "method": "POST",
                "url": endpoint,
                "body": body,
            }
            file.write(json.dumps(request, ensure_ascii=False) + "\n")
    return path


def upload(client: OpenAI, path: Path) -> str:
    """The id of the uploaded file."""
    with path.open("rb") as file:
        return client.files.create(file=file, purpose="batch").id


def create(
    client: OpenAI,
    name: str,
    file_id: str,
    endpoint: Endpoint,
    *,
    rows: int,
    first_wait: str,
) -> Job:
    """Create a batch."""
    batch = client.batches.create(
        input_file_id=file_id,
        endpoint=endpoint,
        completion_window="24h",
        metadata={"name": name},
    )
    return Job(name, batch, rows, first_wait)


def follow(
    client: OpenAI, jobs: Sequence[Job], screen: Screen, *, check: Callable[[], None]
) -> None:
    """Show the batches until all have ended; `check` may raise in between.

    Raises SetupError with the batch's own reason when one of them did not complete.
    """
    with screen.bars({job.name: job.rows for job in jobs}) as bars:
        running = list(jobs)
        while running:
            for job in list(running):
                bars.show(job.name, job.learn(client.batches.retrieve(job.batch.id)))
                if job.ended_at is not None:
                    bars.end(job.name)
                    running.remove(job)
            check()
            time.sleep(_POLL_SECONDS)
    for job in jobs:
        if job.batch.status != "completed":
            raise SetupError(f"The batch of {job.name} is {job.batch.status}: {_reason(job.batch)}")


def fetch(client: OpenAI, job: Job, path: Path) -> list[dict[str, Any]]:
    """Download a batch's output into `path`; its results in input order."""
    if job.batch.output_file_id is None:
        raise SetupError(f"The batch of {job.name} has no output; look at its error file.")
    client.files.content(job.batch.output_file_id).write_to_file(path)
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _reason(batch: Batch) -> str:
    if batch.errors is None or not batch.errors.data:
        return "no reason was given."
    return batch.errors.data[0].message or "no reason was given."
