"""Records and GPU seconds from what Ray Serve's REST API says; the shapes are Ray's own."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatcher.engine_look import Seen, look
from shared.catalog import Catalog
from shared.engines import EngineRecord

LANE = "m@h100"
CATALOG = Catalog.model_validate(
    {
        "pools": {"h100": {"accelerator_type": "H100"}},
        "models": {"m": {"pools": ["h100"], "engine": {"tensor_parallel_size": 2}}},
    }
)
FAILED_ONCE = (
    "A replica failed to start with exception. Retrying 2 more time(s). Error:\n"
    "Traceback (most recent call last):\n"
    '  File "engine.py", line 1, in start\n'
    "    raise SetupError(reason)\n"
    "shared.errors.SetupError: no such weights"
)


def test_an_engine_that_starts_and_runs_has_the_time_that_it_took() -> None:
    starting = _look({}, 100, _replica("STARTING", start=98, node="10.0.0.1"))
    running = _look(starting, 130, _replica("RUNNING", start=98, node="10.0.0.1"))
    later = _look(running, 160, _replica("RUNNING", start=98, node="10.0.0.1"))

    assert [_one(seen).state for seen in (starting, running, later)] == [
        "starting",
        "running",
        "running",
    ]
    assert (_one(later).starts, _one(later).last_start_seconds) == (1, 32)
    assert _one(later).last_start_replica == _one(later).replicas[0].id
    assert _one(later).since == 130
    assert _one(later).replicas[0].machine == "10.0.0.1"


def test_seconds_are_those_of_all_gpus_of_a_replica() -> None:
    starting = _look({}, 100, _replica("STARTING", start=98, node="n"))
    running = _look(starting, 130, _replica("RUNNING", start=98, node="n"))
    later = _look(running, 160, _replica("RUNNING", start=98, node="n"))

    found = [
        (one.starting, one.total) for seen in (starting, running, later) for one in seen.seconds
    ]

    assert found == [(4_000_000, 4_000_000), (60_000_000, 60_000_000), (0, 60_000_000)]


def test_what_waits_for_room_has_no_gpus_and_says_so() -> None:
    waiting = _look({}, 100, _replica("STARTING", start=90))
    later = _look(waiting, 102, _replica("STARTING", start=90))
    placed = _look(later, 104, _replica("STARTING", start=90, node="n"))

    assert _one(waiting).state == "waiting"
    assert _one(waiting).reason == "No machine of its pool has room for it."
    assert (waiting.seconds, later.seconds, placed.seconds) == ([], [], [])
    assert _one(placed).replicas[0].placed_at == 104


def test_the_first_failed_start_shows_its_reason() -> None:
    again = _look({}, 100, _replica("STARTING", start=99, node="n"), message=FAILED_ONCE)
    given_up = _look(again, 130, message=FAILED_ONCE, trigger="REPLICA_STARTUP_FAILED")

    assert (_one(again).state, _one(again).reason) == ("starting", "no such weights")
    assert (_one(given_up).state, _one(given_up).reason) == ("failed", "no such weights")


def test_the_reason_stays_until_the_engine_runs() -> None:
    starting = _replica("STARTING", start=99, node="n")
    failed = _look({}, 100, starting, message=FAILED_ONCE)
    stops = _look(failed, 101, _replica("STOPPING", start=99, node="n"))
    waits = _look(stops, 102, _replica("STARTING", start=101))
    slow = _look(waits, 140, starting, message="1 replicas have taken more than 30s to initialize")
    runs = _look(slow, 150, _replica("RUNNING", start=99, node="n"))
    anew = _look(runs, 160, starting)

    reasons = [_one(seen).reason for seen in (failed, stops, waits, slow, runs, anew)]
    assert reasons == [*["no such weights"] * 4, "", ""]


@pytest.mark.parametrize(
    "message",
    [
        "Deployment 'engine' has 1 replicas that have taken more than 30s to be scheduled.",
        "Deployment 'engine' has 1 replicas that have taken more than 30s to initialize.",
        "Upscaling from 0 to 1 replicas.",
    ],
)
def test_what_only_takes_long_is_no_reason(message: str) -> None:
    seen = _look({}, 100, _replica("STARTING", start=50, node="n"), message=message)
    unplaced = _look({}, 100, _replica("STARTING", start=50), message=message)

    assert (_one(seen).state, _one(seen).reason) == ("starting", "")
    assert _one(unplaced).reason == "No machine of its pool has room for it."


def test_a_replica_that_is_gone_counts_for_a_moment_after_it_was_seen() -> None:
    running = _look({}, 100, _replica("RUNNING", start=90, node="n"))

    soon, late = _look(running, 102), _look(running, 4000)

    assert [one.total for one in soon.seconds] == [4_000_000]
    assert [one.total for one in late.seconds] == [10_000_000]
    assert _one(soon).state == "asleep"


def test_an_engine_that_is_replaced_is_the_new_one_with_the_time_of_both() -> None:
    old = _application(_replica("RUNNING", start=0, node="n", id_="old"), status="DELETING")
    new = _application(_replica("STARTING", start=90, node="n", id_="new"))

    seen = look({f"{LANE}.aaaa": old, f"{LANE}.bbbb": new}, {}, CATALOG, now=100)

    assert _one(seen).state == "starting"
    assert [one.total for one in seen.seconds] == [2 * (100 + 10) * 1_000_000]


def test_applications_of_others_are_left_alone() -> None:
    assert look({"default": _application()}, {}, CATALOG, now=100) == Seen([], [])


@given(st.lists(st.floats(0.1, 50), min_size=1, max_size=20), st.integers(0, 20))
def test_however_often_it_is_looked_at_the_time_of_a_replica_counts_once(
    gaps: list[float], ready_from: int
) -> None:
    now, engines = 100.0, dict[str, EngineRecord]()
    starting = total = 0
    for number, gap in enumerate(gaps):
        now += gap
        state = "RUNNING" if number >= ready_from else "STARTING"
        seen = _look(engines, now, _replica(state, start=90, node="n"))
        engines = {one.lane: one for one in seen.engines}
        starting += sum(one.starting for one in seen.seconds)
        total += sum(one.total for one in seen.seconds)

    ready_at = engines[LANE].replicas[0].ready_at or now
    assert total == pytest.approx(2 * (now - 90) * 1_000_000, abs=len(gaps))
    assert starting == pytest.approx(2 * (ready_at - 90) * 1_000_000, abs=len(gaps))


def _look(before: Seen | dict[str, EngineRecord], now: float, *replicas: Any, **more: Any) -> Seen:
    engines = before if isinstance(before, dict) else {one.lane: one for one in before.engines}
    return look({f"{LANE}.aaaa": _application(*replicas, **more)}, engines, CATALOG, now=now)


def _application(
    *replicas: Any, message: str = "", trigger: str = "AUTOSCALING", status: str = "RUNNING"
) -> dict[str, Any]:
    engine = {"status_trigger": trigger, "message": message, "replicas": list(replicas)}
    return {"status": status, "message": "", "deployments": {"engine": engine}}


def _replica(
    state: str, *, start: float, node: str | None = None, id_: str = "r"
) -> dict[str, Any]:
    return {"replica_id": id_, "state": state, "start_time_s": start, "node_ip": node}


def _one(seen: Seen) -> EngineRecord:
    (engine,) = seen.engines
    return engine
