"""What follows from a batch's position; `test_explain.py` holds the whole answer against Redis."""

from dataclasses import replace

import pytest

from gateway.lane_position import (
    LanePosition,
    OwnAhead,
    ahead_of,
    all_wait_for,
    lane_share,
    near_deadline_summary,
    predicted_run,
    starts_at,
    waits_for,
)
from shared.catalog import LiveCalls
from shared.engines import NO_ROOM, EngineRecord, EngineState
from shared.lane_waits import LaneJob
from shared.lifecycle import Status
from shared.openai.shapes import Predicted, RestsOn

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
    takes_rows=False,
    lane_failed=None,
)


def _engine(reason: str, *, state: EngineState = "starting", seen_at: float = NOW) -> EngineRecord:
    return EngineRecord(lane="m@h100", state=state, since=NOW, seen_at=seen_at, reason=reason)


PREDICTED = Predicted(
    finish_at=1050,
    finish_p80_at=1090,
    rests_on=RestsOn(pace="kind", batches=19, start_seconds=0),
)


def test_a_batch_starts_after_what_is_ahead_of_it() -> None:
    behind = replace(ALONE, ahead=OwnAhead(1, 10, 50), others_ahead="under 100")

    assert [starts_at(one, now=NOW) for one in (ALONE, behind)] == [1000, 1020]


def test_the_prediction_of_a_batch_has_the_first_start_of_its_lanes() -> None:
    other = replace(ALONE, ahead=OwnAhead(1, 10, 50))

    found = predicted_run(PREDICTED, [other, ALONE], now=NOW)

    assert found is not None
    assert (found.start_at, found.finish_at, found.finish_p80_at) == (1000, 1050, 1090)
    assert predicted_run(None, [ALONE], now=NOW) is None


@pytest.mark.parametrize(
    "position",
    [
        replace(ALONE, is_paused=True),
        replace(ALONE, status=Status.FINALIZING),
        replace(ALONE, job=JOB._replace(rate=0)),
    ],
)
def test_no_start_is_predicted_without_a_rate_or_for_a_batch_that_may_not_run(
    position: LanePosition,
) -> None:
    assert starts_at(position, now=NOW) is None


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
        (replace(ALONE, engine=_engine(NO_ROOM, state="waiting")), "no_room"),
        (replace(ALONE, engine=_engine("bad", state="waiting")), "engine_failed"),
        (
            replace(
                ALONE, job=JOB._replace(runs_on="l4"), engine=_engine(NO_ROOM, state="waiting")
            ),
            "lane_starting",
        ),
        (replace(ALONE, engine=_engine("long ago", seen_at=NOW - 100)), "engine_starting"),
        (replace(ALONE, engine=_engine("")), "engine_starting"),
        (replace(ALONE, claimed=1, is_lane_busy=True, engine=_engine("")), "engine_starting"),
        (replace(ALONE, claimed=1, is_lane_busy=True, engine=_engine("bad")), "engine_failed"),
        (ALONE, "engine_starting"),
        (replace(ALONE, is_paused=True), "paused"),
        (replace(ALONE, status=Status.CANCELLING), "cancelling"),
    ],
)
def test_each_position_has_its_reason(position: LanePosition, code: str) -> None:
    waiting = waits_for(position, now=NOW)

    assert waiting is not None
    assert waiting.code == code


def test_claimed_slices_run_unless_their_engine_is_known_not_to() -> None:
    running = replace(ALONE, claimed=1, running=1, is_lane_busy=True)
    failing = replace(running, engine=_engine("no such weights"))

    assert waits_for(replace(running, engine=_engine("", state="running")), now=NOW) is None
    assert waits_for(replace(failing, job=JOB._replace(runs_on="l4")), now=NOW) is None
    assert waits_for(replace(running, engine=_engine("x", seen_at=NOW - 100)), now=NOW) is None
    assert all_wait_for([failing, replace(running, lane="n@l4")], now=NOW) is None
    both = all_wait_for([failing, replace(failing, lane="n@l4")], now=NOW)
    assert both is not None and "no such weights" in both.message
    share = lane_share(failing, now=NOW)
    assert share.waits_for is not None and share.waits_for.code == "engine_failed"


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


def test_the_pace_of_the_batchs_own_rows_and_a_start_count_before_the_rate_of_the_lane() -> None:
    ahead = OwnAhead(1, 50, 50)

    found = starts_at(replace(ALONE, own_rate=25.0, starts_in=90.0, ahead=ahead), now=NOW)

    assert found == 1092


@pytest.mark.parametrize(
    ("live", "left", "said"),
    [
        (None, 10, ""),
        (LiveCalls(), 901, ""),
        (LiveCalls(), 900, "still makes room"),
        (LiveCalls(near_deadline="live_yields", deadline_seconds=60), 61, ""),
        (LiveCalls(near_deadline="live_yields", deadline_seconds=60), 60, "no more room"),
    ],
)
def test_close_to_its_end_a_batch_says_who_gives_way(
    live: LiveCalls | None, left: int, said: str
) -> None:
    found = near_deadline_summary(live, expires_at=int(NOW) + left, now=int(NOW))

    assert bool(found) == bool(said)
    assert said in found
