"""What the seconds of an engine's start were made of. Pure.

The replica measures the parts, and the dispatcher the whole, which begins before the replica does.
"""

from collections.abc import Mapping

import msgspec

#: In the order in which they follow each other; `docs/operations.md` says what each one is.
STAGES = (
    "process",
    "imports",
    "configuration",
    "core",
    "weights",
    "compile",
    "graphs",
    "profile",
    "fronts",
    "server",
)
#: What no stage has: Ray's and Serve's own time, and that until somebody looked.
OTHER = "other"


class Start(msgspec.Struct, frozen=True):
    """How one replica started, as it has measured it itself."""

    #: The seconds of each of `STAGES` that it had.
    stages: dict[str, float]
    #: How long the first row that it answered with success took, in seconds; None until then.
    first_row_seconds: float | None = None
    #: How often its core has been started again since, in place of one that died, and the stages
    #: of the last time.
    restarts: int = 0
    last_restart_stages: dict[str, float] = {}


def whole_start(start: Start, seconds: float) -> Mapping[str, float]:
    """All stages of a start that took so many seconds; together with `other`, they are these.

    Only where the replica itself has measured more than the whole, that is what they are.
    """
    # An idle process of Ray's may have become the replica.
    rest = sum(start.stages.values()) - start.stages.get("process", 0.0)
    process = max(0.0, min(start.stages.get("process", 0.0), seconds - rest))
    found = {**start.stages, "process": process}
    found[OTHER] = max(0.0, seconds - rest - process)
    return {stage: found[stage] for stage in (*STAGES, OTHER) if stage in found}
