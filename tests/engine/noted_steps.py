"""What a scheduler that writes down its steps has written."""

import json
from pathlib import Path
from typing import NamedTuple

#: For `scheduler_cls`; vLLM imports it in its core process.
NOTED_SCHEDULER = "tests.engine.noted_scheduler.NotedScheduler"
#: The file, one step a line.
STEPS_VARIABLE = "NOTED_STEPS"


class Step(NamedTuple):
    """What vLLM has put into one step, in tokens."""

    #: Of live calls, prompts and answers.
    live: int
    #: Of prompts of batches.
    prompts: int
    #: What these may have beside live calls, as the replica has told last; 0 is no limit.
    limit: int


def noted_steps(path: Path) -> list[Step]:
    """All steps so far."""
    lines = path.read_text().splitlines(keepends=True)
    # The last one may be on its way.
    return [Step(*json.loads(line)) for line in lines if line.endswith("\n")]
