"""What is known of the fleet's engines: their replicas, why one does not run, and their seconds.

Pure. The dispatcher asks Ray, and everybody else reads what it has recorded.
"""

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

import msgspec

from shared.engine_starts import Start
from shared.rows_in_engine import RowsInEngine

#: `waiting`: no machine of its pool has room for it. `asleep`: it is deployed, and starts with the
#: next row.
EngineState = Literal["asleep", "waiting", "starting", "running", "stopping", "failed"]
ReplicaState = Literal["waiting", "starting", "running", "stopping"]

#: The reason of an engine that waits for room; any other one is that of a start that failed.
NO_ROOM = "No machine of its pool has room for it."
_MAX_REASON_LENGTH = 1000


class Replica(msgspec.Struct, frozen=True):
    """One process of an engine. Times are Unix seconds."""

    id: str
    state: ReplicaState
    #: Since when it has its GPUs; None while it waits for room.
    placed_at: float | None = None
    #: When it was first seen running.
    ready_at: float | None = None
    #: The address of its machine.
    machine: str = ""


class EngineRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One engine, named by its own lane, as Ray knew it at `seen_at`. Times are Unix seconds."""

    lane: str
    state: EngineState
    #: Since when it is in this state.
    since: float
    seen_at: float
    #: Why it does not run; empty if nothing is wrong.
    reason: str = ""
    #: How many GPUs each replica has, or which part of one; 1 for a replica without any.
    gpus: float = 1
    replicas: tuple[Replica, ...] = ()
    #: Starts that have ended in a running replica, and how long the last of them took.
    starts: int = 0
    last_start_seconds: float = 0.0
    #: The replica that it was.
    last_start_replica: str = ""


class EngineSeconds(NamedTuple):
    """GPU seconds of one engine, as they are added up: in microseconds."""

    lane: str
    #: From when its replicas had their GPUs until they ran.
    starting: int
    #: All of its replicas' time, starting included.
    total: int
    #: Of rows that have their result; scripts add it up as parts are committed.
    rows: int = 0
    #: Of live calls.
    live: int = 0

    @property
    def idle(self) -> int:
        """What is left: nothing was in the engine, or what was has no result."""
        return max(0, self.total - self.starting - self.rows - self.live)

    @property
    def overheads(self) -> Mapping[str, int]:
        """What is no tenant's, by its use."""
        return {"live": self.live, "starting": self.starting, "idle": self.idle}


class ReplicaNumbers(msgspec.Struct, frozen=True, kw_only=True):
    """What a replica has counted since its start, and how it is now."""

    replica: str
    #: The replica's own clock, in seconds: of two answers, the newer one has more.
    clock: float
    #: GPU microseconds of live calls, of rows that ended without a result, and while nothing was in
    #: the engine.
    live_micros: int
    lost_micros: int = 0
    idle_micros: int = 0
    preemptions: int
    #: Tokens of prompts that were looked for in the prefix cache, and those that were found.
    prefix_queries: int
    prefix_hits: int
    #: Tokens that were computed, and those of them that were computed again after a preemption. An
    #: older version has deployed replicas that do not tell it.
    computed_tokens: int = 0
    recomputed_tokens: int = 0
    #: The part of the KV cache that is in use.
    kv_usage: float
    #: Sequences that vLLM computes, and those that it has and does not.
    running: int
    waiting: int
    #: An older version has deployed replicas that do not tell these.
    start: Start | None = None
    #: How far the rows of batches are.
    batches: Mapping[str, RowsInEngine] = {}


def innermost_reason(message: str) -> str:
    """The text of the innermost exception in a message of Ray's, without its traceback."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", message).strip()
    frames = list(re.finditer(r"^\s+(?:File \"|\^+|\~).*$", plain, flags=re.MULTILINE))
    if frames:
        rest = plain[frames[-1].end() :]
        first_line = re.search(r"^\S.*", rest, flags=re.MULTILINE | re.DOTALL)
        plain = first_line[0] if first_line else plain
    plain = re.sub(r"^(?:\w+\.)*\w*(?:Error|Exception): ", "", plain.strip())
    # pydantic adds this for programmers.
    plain = re.sub(r"\s*\[type=\w+, input_value=.*", "", plain, flags=re.DOTALL)
    return plain if len(plain) <= _MAX_REASON_LENGTH else plain[:_MAX_REASON_LENGTH] + "…"
