"""The scheduler of engines, which writes down what is in each step."""

import json
import os
from pathlib import Path
from typing import Any

from tests.engine.noted_steps import STEPS_VARIABLE, Step
from worker.step_scheduler import StepScheduler


class NotedScheduler(StepScheduler):
    """An operator's `scheduler_cls`, as vLLM loads it in its core process."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._steps = Path(os.environ[STEPS_VARIABLE])

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        # Who is here only until this step has ended is live in it, too.
        live = set(self._limit._live)  # noqa: SLF001  # it shows nobody
        step = super().schedule(*args, **kwargs)
        tokens = step.num_scheduled_tokens
        noted = Step(
            sum(count for id_, count in tokens.items() if id_ in live),
            sum(count for id_, count in tokens.items() if id_ not in live and count > 1),
            self._limit._tokens,  # noqa: SLF001  # as above
        )
        with self._steps.open("a") as file:
            file.write(json.dumps(noted) + "\n")
        return step
