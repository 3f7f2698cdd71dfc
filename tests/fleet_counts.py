"""Counts of a fleet, for tests of what is made of them: one place for a new count."""

from shared.engines import EngineRecord, Replica
from shared.lifecycle import Status
from shared.state.census import FleetCounts, LaneCount, Total, Waiting

NOW = 1000.0

#: One of everything.
COUNTS = FleetCounts(
    at=NOW,
    live={Status.VALIDATING: Waiting(1, NOW - 1)},
    ended={Status.FAILED: 1},
    outboxes={"events": Waiting(1, NOW - 1)},
    lanes={
        "m@l4": LaneCount(
            1, 1, 1, 1, NOW - 1, has_failed=True, row_rate=2, token_rate=9, cost_error=0.2
        )
    },
    next_window_at=NOW + 1,
    webhooks_due_at=NOW - 1,
    memory_bytes=3,
    max_memory_bytes=4,
    totals=[
        Total(what, "m@l4", whose, 1_000_000)
        for what, whose in (
            ("completed", "acme"),
            ("failed", "acme"),
            ("input_tokens", "acme"),
            ("cached_tokens", "acme"),
            ("output_tokens", "acme"),
            ("first_results", "-"),
            ("first_seconds", "-"),
            ("given_back", "engine_died"),
            ("gpu_rows", "-"),
            ("gpu_starting", "-"),
            ("gpu_total", "-"),
        )
    ],
    engines=[
        EngineRecord(
            lane="m@l4",
            state="running",
            since=NOW - 5,
            seen_at=NOW,
            replicas=(Replica("r", "running", placed_at=NOW - 9, ready_at=NOW - 5),),
            starts=1,
            last_start_seconds=4.0,
        )
    ],
)
