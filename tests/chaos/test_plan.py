from collections import Counter
from itertools import islice

import pytest

from tests.chaos.plan import REAL, STUB, only_kills, plan, point_by_point
from tests.chaos.points import POINTS

HOUR = 3600.0


def test_a_seed_is_a_plan() -> None:
    assert plan(7, HOUR) == plan(7, HOUR)
    assert plan(7, HOUR) != plan(8, HOUR)


def test_a_longer_run_begins_as_a_shorter_one() -> None:
    short = plan(7, 60)

    assert short
    assert plan(7, HOUR)[: len(short)] == short


def test_an_hour_has_every_kind_of_fault_on_everything() -> None:
    faults = plan(7, HOUR)
    targets = Counter((fault.kind, fault.target) for fault in faults)

    for kind in ("cut", "slow", "hang", "refuse"):
        for client, servers in STUB.links.items():
            for server in servers:
                assert targets[kind, f"{client}>{server}"] > 0
    for process in ("gateway-1", "dispatcher-2", "lane-job", "engine", "redis", "rabbitmq", "s3"):
        assert targets["kill", process] > 0
        assert targets["freeze", process] > 0
    assert {fault.point for fault in faults if fault.point} == {
        name for names in POINTS.values() for name in names
    }


def test_a_real_engines_plan_leaves_out_what_only_a_made_up_one_has() -> None:
    targets = {fault.target for fault in plan(7, HOUR, aims=REAL)}

    assert {"gateway-1", "dispatcher-2", "redis", "rabbitmq", "ceph", "lane-job>s3"} <= targets
    assert not targets & {"engine", "cluster", "lane-job>engine"}


def test_one_process_may_be_all_that_is_hit() -> None:
    faults = plan(7, HOUR, aims=only_kills(STUB, "engine"))

    assert {(fault.kind, fault.target) for fault in faults} == {("kill", "engine")}
    with pytest.raises(ValueError, match="gateway-1"):
        only_kills(STUB, "engines")


def test_each_point_has_its_turn_before_any_comes_again() -> None:
    for room, places in point_by_point(7).items():
        turn = [place.partition(":")[0] for place in islice(places, len(POINTS[room]))]

        assert sorted(turn) == sorted(POINTS[room])


def test_faults_come_in_order_and_leave_the_last_moments_alone() -> None:
    times = [fault.at for fault in plan(7, 600)]

    assert times == sorted(times)
    assert times[-1] < 597
