import re
from typing import Any

import pytest

from shared.call_times import BOUNDS, Times
from shared.lifecycle import Status
from shared.monitoring.fleet_metrics import MAX_TENANTS, OTHER, fleet_exposition
from shared.monitoring.metrics import Calls, exposition, may_scrape, service_calls
from shared.state.census import LaneCount, Total, Waiting
from tests.fleet_counts import COUNTS, NOW


def test_a_gauge_shows_how_long_the_oldest_waits() -> None:
    text = _shown(live={Status.VALIDATING: Waiting(2, NOW - 90)})

    assert 'batchyard_batches{status="validating"} 2.0' in text
    assert 'batchyard_oldest_batch_seconds{status="validating"} 90.0' in text


def test_what_nothing_waits_for_is_zero_seconds_old() -> None:
    text = _shown(outboxes={"events": Waiting(0, None)}, webhooks_due_at=None)

    assert 'batchyard_outbox_oldest_seconds{outbox="events"} 0.0' in text
    assert "batchyard_webhooks_overdue_seconds 0.0" in text


def test_a_delivery_that_is_due_later_is_not_overdue() -> None:
    assert "batchyard_webhooks_overdue_seconds 0.0" in _shown(webhooks_due_at=NOW + 60)


def test_ended_batches_are_a_counter() -> None:
    text = _shown(ended={Status.FAILED: 3})

    assert "# TYPE batchyard_batches_ended_total counter" in text
    assert 'batchyard_batches_ended_total{status="failed"} 3.0' in text


def test_redis_memory_stands_beside_its_bound() -> None:
    text = _shown()

    assert "batchyard_redis_memory_bytes 3.0" in text
    assert "batchyard_redis_max_memory_bytes 4.0" in text


def test_a_lane_whose_job_never_beat_has_no_silence() -> None:
    text = _shown(
        lanes={
            "old@l4": LaneCount(1, 2, 3, 40, NOW - 7, has_failed=False),
            "new@l4": LaneCount(1, 0, 0, 0, 0, has_failed=True),
        }
    )

    assert 'batchyard_lane_job_silent_seconds{lane="old@l4"} 7.0' in text
    assert 'batchyard_lane_job_silent_seconds{lane="new@l4"}' not in text
    assert 'batchyard_lane_failed{lane="new@l4"} 1.0' in text


def test_gpu_seconds_of_all_uses_are_all_of_the_engines_time() -> None:
    numbers = {"gpu_total": 100, "gpu_rows": 60, "gpu_starting": 15, "gpu_live": 5}
    text = _shown(
        totals=[Total(what, "m@l4", "-", 1_000_000 * count) for what, count in numbers.items()]
    )

    uses = {"batch": 60.0, "live": 5.0, "starting": 15.0, "idle": 20.0}
    for use, seconds in uses.items():
        assert f'batchyard_gpu_seconds_total{{lane="m@l4",use="{use}"}} {seconds}' in text


def test_a_running_batch_shows_how_far_it_is_and_when_it_will_have_ended() -> None:
    text = _shown()

    labels = 'batch="batch_1",{}tenant="acme"'
    rows = labels.format('outcome="left",')
    assert f"batchyard_batch_rows{{{rows}}} 5.0" in text
    for until, seconds in {"p50": 100.0, "p80": 200.0, "window": 4000.0}.items():
        left = f'batch="batch_1",tenant="acme",until="{until}"'
        assert f"batchyard_batch_seconds_left{{{left}}} {seconds}" in text


def test_the_error_of_predicted_ends_is_a_mean_over_all_parts_of_the_range() -> None:
    ends = {"ended_p50": 5, "ended_p80": 3, "ended_later": 2, "end_error": 2500}
    text = _shown(totals=[Total(what, "m@l4", "creation", count) for what, count in ends.items()])

    labels = 'lane="m@l4",made="creation"'
    assert f"batchyard_end_prediction_error_count{{{labels}}} 10.0" in text
    assert f"batchyard_end_prediction_error_sum{{{labels}}} 2.5" in text
    assert 'batchyard_predicted_ends_total{ended="later",lane="m@l4",made="creation"} 2.0' in text


def test_the_largest_tenants_have_names_and_all_others_are_one() -> None:
    many = [Total("completed", "m@l4", f"t{number}", number) for number in range(1, 101)]
    text = _shown(totals=many)

    samples = re.findall(r'batchyard_rows_total{.*outcome="completed",tenant="(\w+)".*} (.*)', text)
    assert len(samples) == MAX_TENANTS + 1
    assert ("t100", "100.0") in samples
    assert (OTHER, str(float(sum(range(1, 81))))) in samples


def test_counters_of_a_lane_begin_at_0() -> None:
    text = _shown(totals=[Total("completed", "m@l4", "acme", 5)])

    for sample in (
        'batchyard_rows_total{lane="m@l4",outcome="failed",tenant="acme"}',
        'batchyard_slices_given_back_total{lane="m@l4",reason="engine_died"}',
        'batchyard_engine_preemptions_total{lane="m@l4"}',
        'batchyard_first_result_seconds_count{lane="m@l4"}',
        'batchyard_predicted_ends_total{ended="later",lane="m@l4",made="running"}',
    ):
        assert f"{sample} 0.0" in text


def test_an_engine_is_in_one_state() -> None:
    text = _shown()

    assert 'batchyard_engine_state{lane="m@l4",state="running"} 1.0' in text
    assert 'batchyard_engine_replicas{lane="m@l4",state="running"} 1.0' in text
    assert 'batchyard_engine_starts_total{lane="m@l4"} 1.0' in text


def test_calls_of_services_are_a_histogram_by_outcome() -> None:
    times = Times("s3", is_ok=False, counts=[1, *[0] * (len(BOUNDS) - 1), 2], seconds=70.0)
    text = exposition([service_calls([times])]).decode()

    called = 'outcome="error",service="s3"'
    assert f'batchyard_service_call_seconds_bucket{{le="0.001",{called}}} 1.0' in text
    assert f'batchyard_service_call_seconds_bucket{{le="30.0",{called}}} 1.0' in text
    assert f'batchyard_service_call_seconds_bucket{{le="+Inf",{called}}} 3.0' in text
    assert f"batchyard_service_call_seconds_sum{{{called}}} 70.0" in text


def test_what_cannot_be_counted_is_left_out() -> None:
    text = fleet_exposition(None, up={"redis": False}, dead_letters=None, leads=False).decode()

    assert 'batchyard_service_up{service="redis"} 0.0' in text
    assert "batchyard_dispatcher_leads 0.0" in text
    assert "batchyard_batches" not in text
    assert "batchyard_dead_letters" not in text


def test_calls_are_counted_by_their_route() -> None:
    calls = Calls()

    calls.count("GET", "/v1/batches/{batch_id}", 200, 0.02)
    calls.count("GET", "/v1/batches/{batch_id}", 200, 0.2)

    text = calls.exposition().decode()
    route = 'method="GET",route="/v1/batches/{batch_id}"'
    assert f'batchyard_http_requests_total{{{route},status="200"}} 2.0' in text
    assert f'batchyard_http_request_seconds_bucket{{le="0.025",{route}}} 1.0' in text


@pytest.mark.parametrize(
    "header",
    [None, "", "Bearer", "Bearer ", "Bearer wrong", "secret", "Bearer secret ", "Bearer 秘"],
)
def test_only_the_bearer_of_the_token_may_scrape(header: str | None) -> None:
    assert not may_scrape(header, "secret")
    assert may_scrape("Bearer secret", "secret")


def _shown(**changes: Any) -> str:
    counted = COUNTS._replace(**changes)
    up = {"redis": True, "rabbitmq": True}
    return fleet_exposition(counted, up=up, dead_letters=0, leads=True).decode()
