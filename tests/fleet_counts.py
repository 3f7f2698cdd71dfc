"""Counts of a fleet, for tests of what is made of them: one place for a new count."""

from shared.lifecycle import Status
from shared.state.census import FleetCounts, LaneCount, Waiting

NOW = 1000.0

#: One of everything.
COUNTS = FleetCounts(
    at=NOW,
    live={Status.VALIDATING: Waiting(1, NOW - 1)},
    ended={Status.FAILED: 1},
    outboxes={"events": Waiting(1, NOW - 1)},
    lanes={"m@l4": LaneCount(1, 1, 1, 1, NOW - 1, has_failed=True)},
    next_window_at=NOW + 1,
    webhooks_due_at=NOW - 1,
    memory_bytes=3,
    max_memory_bytes=4,
)
