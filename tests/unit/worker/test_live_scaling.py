import math
from types import SimpleNamespace
from typing import Any

import pytest

from worker.live_scaling import LIVE_METRIC, NEEDED_METRIC, replicas_wanted

#: Calls with rows that fill a replica.
TARGET = 4


class Policy:
    """What Serve keeps from one question to the next."""

    def __init__(self, running: int) -> None:
        self.running = running
        self.state: dict[str, Any] = {}

    def wanted(
        self, now: float, *, calls: float = 0.0, live: float = 0.0, needed: float | None = None
    ) -> int:
        reported = {LIVE_METRIC: {"a": [_at(0.0), _at(live)], "b": []}}
        if needed is not None:
            reported[NEEDED_METRIC] = {"a": [_at(needed)]}
        context = SimpleNamespace(
            current_num_replicas=self.running,
            target_num_replicas=self.running,
            total_num_requests=calls,
            raw_metrics=reported,
            policy_state=self.state,
            current_time=now,
            config=SimpleNamespace(get_target_ongoing_requests=lambda: TARGET),
        )
        found, self.state = replicas_wanted(context)
        return math.ceil(found)


def _at(value: float) -> SimpleNamespace:
    return SimpleNamespace(value=value)


def test_live_calls_get_replicas_at_once_and_before_the_seats_are_full() -> None:
    policy = Policy(1)

    assert policy.wanted(0, live=0.5) == 1
    assert policy.wanted(0, live=0.8) == 2
    assert policy.wanted(0, live=1.6) == 3


def test_batches_get_replicas_slowly() -> None:
    policy = Policy(1)
    load = {"calls": 3.0 * TARGET, "needed": 2.5}

    assert policy.wanted(100, **load) == 1
    assert policy.wanted(109, **load) == 1
    assert policy.wanted(111, **load) == 3


def test_a_moment_in_which_batches_need_less_begins_anew() -> None:
    policy = Policy(1)
    load = {"calls": 3.0 * TARGET, "needed": 2.5}

    policy.wanted(100, **load)
    policy.wanted(108, calls=3.0 * TARGET, needed=0.5)

    assert policy.wanted(112, **load) == 1


def test_batches_get_no_more_than_they_need_or_fill() -> None:
    for load in ({"calls": 8.0 * TARGET, "needed": 1.5}, {"calls": 1.5 * TARGET, "needed": 8.0}):
        policy = Policy(1)
        policy.wanted(0, **load)
        assert policy.wanted(60, **load) == 2


def test_what_batches_need_comes_on_top_of_live_calls() -> None:
    policy = Policy(2)
    load = {"calls": 4.0 * TARGET, "needed": 2.0, "live": 0.7}
    policy.wanted(0, **load)

    assert policy.wanted(60, **load) == 3


def test_live_calls_do_not_wait_for_what_batches_wait_for() -> None:
    policy = Policy(1)

    assert policy.wanted(0, calls=9.0 * TARGET, needed=9.0, live=0.8) == 2


def test_a_replica_that_live_calls_need_no_more_is_a_batchs_as_long_as_it_is_full() -> None:
    policy = Policy(3)

    assert policy.wanted(0, calls=5.0 * TARGET, needed=0.1) == 3
    assert policy.wanted(0, calls=1.5 * TARGET, needed=0.1) == 2
    assert policy.wanted(0, calls=0, needed=0.1) == 0


def test_a_need_is_remembered_while_reports_are_late() -> None:
    policy = Policy(1)
    policy.wanted(0, calls=3.0 * TARGET, needed=0.5)

    assert policy.wanted(30, calls=3.0 * TARGET) == 1
    assert policy.wanted(59, calls=3.0 * TARGET) == 1
    policy.wanted(61, calls=3.0 * TARGET)
    assert policy.wanted(80, calls=3.0 * TARGET) == 3


def test_a_lane_job_that_tells_nothing_counts_by_its_calls() -> None:
    policy = Policy(1)
    policy.wanted(0, calls=2.0 * TARGET)

    assert policy.wanted(60, calls=2.0 * TARGET) == 2


@pytest.mark.parametrize("live", [0.0, 0.01])
def test_one_live_call_keeps_an_engine(live: float) -> None:
    assert Policy(1).wanted(0, live=live) == bool(live)


def test_an_engine_without_replicas_stays_as_serve_wants_it() -> None:
    assert Policy(0).wanted(0, calls=3) == 0
