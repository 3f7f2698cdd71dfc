"""A batch's life as one table: statuses, events, transitions. Does no I/O and imports none.

Everything that may ever change a batch's status is a row of TRANSITIONS; `State.apply` and the
scripts beside it are built from these rows, and `docs/lifecycle.md` is generated from them.
"""

import sys
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from enum import StrEnum
from typing import NamedTuple


class Status(StrEnum):
    """OpenAI's eight batch statuses, in the order a batch may pass them."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


class Event(StrEnum):
    """What can happen to a batch; each leads to exactly one status."""

    INPUT_ACCEPTED = "input_accepted"
    INPUT_REJECTED = "input_rejected"
    LANE_FAILED = "lane_failed"
    INPUT_LOST = "input_lost"
    ROWS_FINISHED = "rows_finished"
    WINDOW_CLOSED = "window_closed"
    PART_BROKEN = "part_broken"
    OUTPUT_COMMITTED = "output_committed"
    EXPIRY_COMMITTED = "expiry_committed"
    CANCEL_REQUESTED = "cancel_requested"
    CANCEL_COMMITTED = "cancel_committed"


class Transition(NamedTuple):
    """The statuses in which an event may happen, and the status that it leads to."""

    sources: AbstractSet[Status]
    target: Status


TRANSITIONS: Mapping[Event, Transition] = {
    Event.INPUT_ACCEPTED: Transition({Status.VALIDATING}, Status.IN_PROGRESS),
    Event.INPUT_REJECTED: Transition({Status.VALIDATING}, Status.FAILED),
    # The two ways a running batch fails: its lane's engine can never start, or the object that it
    # reads is gone or was replaced.
    Event.LANE_FAILED: Transition({Status.IN_PROGRESS}, Status.FAILED),
    Event.INPUT_LOST: Transition({Status.IN_PROGRESS}, Status.FAILED),
    Event.ROWS_FINISHED: Transition({Status.IN_PROGRESS}, Status.FINALIZING),
    # What finished before the window closed is written like any other output.
    Event.WINDOW_CLOSED: Transition({Status.IN_PROGRESS}, Status.FINALIZING),
    # Results were damaged in S3 before they were put together, so their rows run again.
    Event.PART_BROKEN: Transition({Status.FINALIZING}, Status.IN_PROGRESS),
    Event.OUTPUT_COMMITTED: Transition({Status.FINALIZING}, Status.COMPLETED),
    Event.EXPIRY_COMMITTED: Transition({Status.FINALIZING}, Status.EXPIRED),
    Event.CANCEL_REQUESTED: Transition(
        {Status.VALIDATING, Status.IN_PROGRESS, Status.FINALIZING}, Status.CANCELLING
    ),
    Event.CANCEL_COMMITTED: Transition({Status.CANCELLING}, Status.CANCELLED),
}

INITIAL = Status.VALIDATING
#: A batch may be paused in these statuses. One that is closing must end.
PAUSABLE: AbstractSet[Status] = frozenset({Status.VALIDATING, Status.IN_PROGRESS})
FINAL: AbstractSet[Status] = frozenset(Status).difference(
    *(row.sources for row in TRANSITIONS.values())
)


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {INITIAL}"]
    for event, (sources, target) in TRANSITIONS.items():
        lines += [f"    {source} --> {target}: {event}" for source in Status if source in sources]
    lines += [f"    {status} --> [*]" for status in Status if status in FINAL]
    return "\n".join(lines)


def document() -> str:
    """`docs/lifecycle.md`, written by `python -m shared.lifecycle`."""
    rows = [
        f"| `{event}` | {_listed(row.sources)} | `{row.target}` |"
        for event, row in TRANSITIONS.items()
    ]
    return "\n".join(
        [
            "# The life of a batch",
            "",
            f"A batch begins as `{INITIAL}` and ends as one of {_listed(FINAL)}. "
            "Each event below leads to exactly one status; where the table has no row, "
            "the event is refused and nothing changes. "
            "This page is generated from `shared/lifecycle.py` by `python -m shared.lifecycle`.",
            "",
            "```mermaid",
            diagram(),
            "```",
            "",
            "| event | from | to |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def _listed(statuses: AbstractSet[Status]) -> str:
    return ", ".join(f"`{status}`" for status in Status if status in statuses)


if __name__ == "__main__":
    sys.stdout.write(document())
