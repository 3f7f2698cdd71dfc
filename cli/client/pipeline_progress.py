"""Progress of a pipeline on standard error, with what its stages wait for."""

import time
from collections.abc import Mapping
from typing import Any

from cli.client.gateway import Gateway
from cli.client.pace import Pace
from cli.client.progress import Screen, Why
from cli.client.words import rate_text, rows_text

#: Statuses of a pipeline that has not ended.
LIVE = ("in_progress", "cancelling")


class PipelineProgress(Screen):
    """Shows how far one pipeline is."""

    def __init__(self, gateway: Gateway, name: str, *, is_shown: bool = True) -> None:
        super().__init__(name, is_shown=is_shown)
        self._why = Why(gateway)
        self._pace = Pace()
        self._waiting: str | None = None

    def show(self, pipeline: Mapping[str, Any]) -> None:
        """Show the pipeline."""
        now, counts = time.monotonic(), pipeline["request_counts"]
        self._pace.note(counts["completed"] + counts["failed"], now)
        rate, stage = self._pace.rate(now), waiting_stage(pipeline)
        waiting = None if rate or stage is None else stage["batch_id"]
        if waiting != self._waiting:
            self._waiting = waiting
            self._why.forget()
        why = self._why.of(waiting, now)
        text = f"{self._text}: {pipeline_text(pipeline)}"
        if rate and pipeline["status"] in LIVE:
            text += f", {rate_text(rate)}"
        elif why and stage is not None:
            text += f", stage {stage['number']}: {why}"
        self._say(text, now, is_end=pipeline["status"] not in LIVE)


def pipeline_text(pipeline: Mapping[str, Any]) -> str:
    """Where a pipeline is: rows of the input, requests of all calls, and rows at the end."""
    parts = [pipeline["status"], f"{pipeline['rows_read']:,} rows read"]
    parts += [f"{rows_text(pipeline)} requests", f"{pipeline['rows']:,} rows through"]
    if failed := sum(stage["failed"] for stage in pipeline["stages"]):
        parts.append(f"{failed:,} failed")
    return ", ".join(parts)


def waiting_stage(pipeline: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The first call that has requests without a result."""
    for stage in pipeline["stages"]:
        counts = stage.get("request_counts")
        if counts and counts["completed"] + counts["failed"] < counts["total"]:
            found: Mapping[str, Any] = stage
            return found
    return None
