"""What follows from a batch's position; `test_explain.py` holds the whole answer against Redis."""

from dataclasses import replace

import pytest

from gateway.explanation import Predicted
from gateway.lane_position import (
    LanePosition,
    OwnAhead,
    ahead_of,
    all_wait_for,
    lane_share,
    late_warnings,
    predicted,
    waits_for,
)
from shared.engines import EngineRecord, EngineState
from shared.lane_waits import LaneJob
from shared.lifecycle import Status

NOW = 1_000.0
JOB = LaneJob("job-1", opened_at=900, beat_at=999, rate=2, runs_on="", full_pools=(), spills_at=0)
ALONE = LanePosition(
    lane="m@h100",
    status=Status.IN_PROGRESS,
    is_paused=False,
    has_begun=False,
    rows_left=100,
    pending=3,
    ready=1,
    running=0,
    claimed=0,
    ahead=OwnAhead(0, 0, 0),
    others_ahead="none",
    is_lane_busy=False,
    own_batches=1,
    own_rows=100,
    others="none",
    other_tenants=0,
    job=JOB,
    failure=None,
    engine=None,
    had_engine_trouble=False,
    lane_failed=None,
)


def _engine(reason: str, *, state: EngineState = "starting", seen_at: float = NOW) -> EngineRecord:
    return EngineRecord(lane="m@h100", state=state, since=NOW, seen_at=seen_at, reason=reason)


def test_a_tenant_that_is_alone_gets_the_whole_lane() -> None:
    found = predicted(ALONE, now=NOW)

    assert found is not None
    assert (found.start_at, found.finish_at) == (1000, 1050)


def test_a_shared_lane_is_divided_until_the_others_are_done() -> None:
    short = replace(ALONE, others="under 100", other_tenants=1)
    long = replace(ALONE, others="under 1,000,000", other_tenants=1)

    ends = [found.finish_at for one in (short, long) if (found := predicted(one, now=NOW))]

    assert ends == [1065, 1150]


@pytest.mark.parametrize(
    "position",
    [
        replace(ALONE, is_paused=True),
        replace(ALONE, status=Status.FINALIZING),
        replace(ALONE, job=JOB._replace(rate=0)),
    ],
)
def test_nothing_is_predicted_without_a_rate_or_for_a_batch_that_may_not_run(
    position: LanePosition,
) -> None:
    assert predicted(position, now=NOW) is None


@pytest.mark.parametrize(
    ("position", "code"),
    [
        (replace(ALONE, failure="no such weights"), "engine_failed"),
        (replace(ALONE, job=JOB._replace(id="")), "lane_starting"),
        (replace(ALONE, job=JOB._replace(beat_at=0)), "lane_starting"),
        (replace(ALONE, job=JOB._replace(beat_at=900)), "lane_silent"),
        (replace(ALONE, is_lane_busy=True), "others"),
        (replace(ALONE, job=JOB._replace(full_pools=("h100",))), "no_room"),
        (replace(ALONE, had_engine_trouble=True), "engine_failed"),
        (replace(ALONE, engine=_engine("no such weights")), "engine_failed"),
        (replace(ALONE, engine=_engine("no room", state="waiting")), "no_room"),
        (replace(ALONE, engine=_engine("long ago", seen_at=NOW - 100)), "engine_starting"),
        (replace(ALONE, engine=_engine("")), "engine_starting"),
        (ALONE, "engine_starting"),
        (replace(ALONE, is_paused=True), "paused"),
        (replace(ALONE, status=Status.CANCELLING), "cancelling"),
    ],
)
def test_each_position_has_its_reason(position: LanePosition, code: str) -> None:
    waiting = waits_for(position, now=NOW)

    assert waiting is not None
    assert waiting.code == code


def test_of_several_lanes_the_first_with_rows_left_says_what_is_waited_for() -> None:
    done, busy = replace(ALONE, rows_left=0), replace(ALONE, lane="n@l4", is_lane_busy=True)

    waiting = all_wait_for([done, busy], now=NOW)

    assert waiting is not None
    assert waiting.message.startswith("Lane n@l4: Other batches are running")
    assert all_wait_for([replace(done, claimed=1), busy], now=NOW) is None


def test_a_closing_batch_has_nothing_ahead_and_no_open_slices() -> None:
    closing = replace(ALONE, status=Status.FINALIZING, running=1, claimed=1)

    share = lane_share(closing, now=NOW)

    assert ahead_of(closing) is None
    assert (share.pending, share.ready, share.running, share.waits_for) == (0, 0, 0, None)


def test_a_predicted_end_after_the_window_is_warned_of() -> None:
    prediction = Predicted(start_at=None, finish_at=2000)

    assert [one.code for one in late_warnings(prediction, expires_at=1999)] == ["deadline_at_risk"]
    assert late_warnings(prediction, expires_at=2000) == []
    assert late_warnings(None, expires_at=0) == []


def test_the_pace_of_the_batchs_own_rows_counts_before_that_of_the_lane() -> None:
    found = predicted(replace(ALONE, own_rate=25.0, starts_in=90.0), now=NOW)

    assert found is not None
    assert (found.start_at, found.finish_at) == (1090, 1094)
