"""Counts of a fleet, for tests of what is made of them: one place for a new count."""

from shared.engine_starts import Start
from shared.engines import EngineRecord, Replica, ReplicaNumbers
from shared.lifecycle import Status
from shared.state.census import FleetCounts, LaneCount, RunningBatch, Total, Waiting

NOW = 1000.0

REPLICA = ReplicaNumbers(
    replica="r",
    clock=100.0,
    live_micros=5,
    preemptions=1,
    computed_tokens=30,
    recomputed_tokens=7,
    prefix_queries=10,
    prefix_hits=6,
    kv_usage=0.5,
    running=3,
    waiting=1,
)
#: One of everything.
COUNTS = FleetCounts(
    at=NOW,
    live={Status.VALIDATING: Waiting(1, NOW - 1)},
    ended={Status.FAILED: 1},
    outboxes={"events": Waiting(1, NOW - 1)},
    lanes={
        "m@l4": LaneCount(
            1,
            1,
            1,
            1,
            NOW - 1,
            has_failed=True,
            row_rate=2,
            token_rate=9,
            cost_error=0.2,
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
            ("ended_p50", "creation"),
            ("ended_p80", "creation"),
            ("ended_later", "creation"),
            ("end_error", "creation"),
            ("preemptions", "-"),
            ("computed_tokens", "-"),
            ("recomputed_tokens", "-"),
            ("prefix_queries", "-"),
            ("prefix_hits", "-"),
            ("gpu_rows", "-"),
            ("gpu_live", "-"),
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
    replicas={"m@l4": [REPLICA]},
    starts={"m@l4": Start({"process": 1.0, "core": 2.5})},
    running=[
        RunningBatch(
            "batch_1",
            "acme",
            total=10,
            completed=4,
            failed=1,
            input_tokens=50,
            output_tokens=60,
            gpu_micros=7_000_000,
            expires_at=5000,
            finish_at=1100,
            finish_p80_at=1200,
        )
    ],
)
