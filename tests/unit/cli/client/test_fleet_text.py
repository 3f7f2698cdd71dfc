from typing import Any

from cli.client.fleet_text import engine_row, lane_row, last_start, summary, tenant_row

NOW = 1000.0
LANE: dict[str, Any] = {
    "name": "m@h100",
    "batches": 2,
    "rows_left": 12_000,
    "running_slices": 3,
    "rows_per_second": 40.0,
    "tenants": [{"tenant": name, "batches": 1, "rows_left": 3000} for name in "abcd"],
    "waits_for": None,
}
ENGINE: dict[str, Any] = {
    "lane": "m@h100",
    "state": "running",
    "since": 880.0,
    "gpus": 2,
    "replicas": [{"placed_at": 10.0}, {"placed_at": None}],
    "starts": 4,
    "last_start_seconds": 95.2,
    "last_start_stages": {"process": 3.0, "core": 80.25, "graphs": 0.01, "other": 11.94},
    "first_row_seconds": None,
    "reason": None,
}


def test_a_lane_names_the_tenants_with_the_most_rows_and_counts_the_others() -> None:
    row = lane_row(LANE)

    assert row[:5] == ("m@h100", "2", "12,000", "3", "40 rows/s")
    assert row[5] == "a 3,000, b 3,000, c 3,000, and 1 more"
    assert row[6] == "-"


def test_a_lane_that_waits_says_for_what_and_an_idle_one_shows_no_rate() -> None:
    waiting = lane_row({**LANE, "waits_for": {"code": "no_room", "message": "Pool x is full."}})
    idle = lane_row({**LANE, "batches": 0, "tenants": []})

    assert waiting[6] == "Pool x is full."
    assert (idle[1], idle[4], idle[5]) == ("-", "-", "-")


def test_an_engine_counts_the_gpus_that_it_has() -> None:
    assert engine_row(ENGINE, NOW) == (*("m@h100", "running", "2 min", "2", "2", "4", "95 s", "-"),)


def test_the_stages_of_a_start_are_a_line_without_the_shortest_ones() -> None:
    line = "m@h100: last start 95.2 s: process 3.0, core 80.2, other 11.9"

    assert last_start(ENGINE) == line
    assert last_start({**ENGINE, "first_row_seconds": 0.75}) == f"{line}; first row 0.8 s"
    assert last_start({**ENGINE, "last_start_stages": {}}) == ""
    again = {"configuration": 1.0, "core": 0.01, "weights": 3.5}
    assert last_start({**ENGINE, "last_restart_stages": again}) == (
        f"{line}; last restart of its core 4.5 s: configuration 1.0, weights 3.5"
    )


def test_an_engine_that_does_not_start_says_why() -> None:
    row = engine_row({**ENGINE, "state": "failed", "reason": "no such weights"}, NOW)

    assert (row[1], row[-1]) == ("failed", "no such weights")


def test_a_tenant_and_the_batches_are_told_in_short() -> None:
    tenant = {
        "id": "acme",
        "batches": 1,
        "rows_left": 10,
        "enqueued_requests": 20,
        "live_calls": 4,
        "stored_bytes": 2048,
        "lanes": ["m@h100", "n@l4"],
    }
    statuses = {
        "in_progress": {"number": 3, "oldest_seconds": 300},
        "finalizing": {"number": 0, "oldest_seconds": 0},
    }

    assert tenant_row(tenant) == ("acme", "1", "10", "20", "4", "2.0 KiB", "m@h100, n@l4")
    assert summary({"batches": statuses}) == "3 in progress (oldest 5 min), 0 finalizing"
