from types import SimpleNamespace

import pytest

from worker.live_scaling import LIVE_CALLS_METRIC, replicas_wanted

TARGET = 4


def wanted(running: int, *, calls: float, live: dict[str, float]) -> float:
    context = SimpleNamespace(
        current_num_replicas=running,
        target_num_replicas=running,
        total_num_requests=calls,
        aggregated_metrics={LIVE_CALLS_METRIC: live},
        config=SimpleNamespace(get_target_ongoing_requests=lambda: TARGET),
    )
    return replicas_wanted(context)[0]


@pytest.mark.parametrize(
    ("calls", "live", "replicas"),
    [
        (0, {}, 0),
        (8, {}, 2),
        # As many rows as one replica computes.
        (0, {"a": 64.0, "b": 64.0}, 2),
        # They have seats beside each other.
        (4, {"a": 64.0}, 1),
    ],
)
def test_replicas_follow_the_larger_of_both_loads(
    calls: float, live: dict[str, float], replicas: float
) -> None:
    assert wanted(2, calls=calls, live=live) == replicas


def test_one_live_call_keeps_an_engine() -> None:
    assert 0 < wanted(1, calls=0, live={"a": 1.0}) <= 1


def test_an_engine_without_replicas_stays_as_serve_wants_it() -> None:
    assert wanted(0, calls=3, live={}) == 0
