"""Schedulers that write down what is in each step. vLLM imports them in its core process."""

import os
import time
from pathlib import Path
from typing import Any

from benchmarks.noted_steps import FOLDER_VARIABLE
from worker.step_scheduler import AsyncStepScheduler, StepScheduler


class _Noted:
    """What both of vLLM's schedulers get."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        path = Path(os.environ[FOLDER_VARIABLE]) / f"{os.getpid()}.jsonl"
        self._steps = path.open("a", buffering=1)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        step = super().schedule(*args, **kwargs)  # type: ignore[misc]  # vLLM's
        if counts := step.num_scheduled_tokens:
            # An answer has one token in a step.
            prompts = [count for count in counts.values() if count > 1]
            self._steps.write(f"[{time.monotonic()},{len(counts)},{len(prompts)},{sum(prompts)}]\n")
        return step


class NotedScheduler(_Noted, StepScheduler):
    """For engines that wait for each step."""


class NotedAsyncScheduler(_Noted, AsyncStepScheduler):
    """For engines that make up a step while the one before it runs."""
