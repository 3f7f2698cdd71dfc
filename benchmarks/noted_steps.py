"""What a stretch of time had of vLLM's steps, from what `benchmarks.noted_scheduler` writes.

Each engine has a file in the folder that a variable names.
"""

import json
import statistics
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

FOLDER_VARIABLE = "BENCHMARK_STEPS"


class Step(NamedTuple):
    """One step, with the seconds of the monotonic clock at which it was made up."""

    at: float
    sequences: int
    #: Prompts of which it computes a part, and their tokens.
    prompts: int
    prompt_tokens: int


class Steps(NamedTuple):
    """Those of a stretch of time. Times are milliseconds from one step to the next."""

    steps: int
    #: The part of them with prompts.
    mixed: float
    #: Sequences in the mean.
    sequences: float
    milliseconds: float
    milliseconds_mixed: float
    #: Before the first step, and after the last one, in seconds.
    before: float
    after: float

    def text(self) -> str:
        """In one line."""
        return (
            f"{self.steps} steps, {self.mixed:.0%} mixed, {self.sequences:.0f} sequences; "
            f"{self.milliseconds:.1f} ms, mixed {self.milliseconds_mixed:.1f} ms; "
            f"{self.before:.2f} s before the first, {self.after:.2f} s after the last"
        )


def scheduler_name(*, is_async: bool) -> str:
    """The class for `scheduler_cls`, as vLLM finds it."""
    return f"benchmarks.noted_scheduler.Noted{'Async' if is_async else ''}Scheduler"


def steps_between(folder: Path, began: float, ended: float) -> Steps | None:
    """The steps of the engine that made most of them then; None if none made any."""
    found = [_read(path, began, ended) for path in folder.glob("*.jsonl")]
    most = max(found, key=len, default=[])
    return of(most, began, ended) if most else None


def of(steps: Sequence[Step], began: float, ended: float) -> Steps:
    """What these steps were like."""
    lasted: dict[bool, list[float]] = {True: [], False: []}
    for one, following in pairwise(steps):
        lasted[one.prompts > 0].append(1000 * (following.at - one.at))
    return Steps(
        len(steps),
        sum(one.prompts > 0 for one in steps) / len(steps),
        statistics.mean(one.sequences for one in steps),
        statistics.mean(lasted[False] or [0.0]),
        statistics.mean(lasted[True] or [0.0]),
        steps[0].at - began,
        ended - steps[-1].at,
    )


def _read(path: Path, began: float, ended: float) -> list[Step]:
    lines = path.read_text().splitlines(keepends=True)
    # The last one may be on its way.
    steps = (Step(*json.loads(line)) for line in lines if line.endswith("\n"))
    return [step for step in steps if began <= step.at <= ended]
