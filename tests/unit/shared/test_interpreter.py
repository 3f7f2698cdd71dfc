import asyncio
import gc
import sys
from collections.abc import Iterator

import pytest

from shared.interpreter import collect_seldom, collector_paused, keep_pauses_short
from shared.tasks import end
from tests.eventually import eventually


@pytest.fixture
def process() -> Iterator[None]:
    """Has the interpreter as it was, afterwards."""
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)


def test_the_collector_is_paused_for_a_while() -> None:
    with collector_paused():
        assert not gc.isenabled()

    assert gc.isenabled()


@pytest.mark.usefixtures("process")
def test_what_is_there_is_looked_at_by_no_later_collection() -> None:
    there = [object()]

    keep_pauses_short()

    assert not any(one is there for one in gc.get_objects())


@pytest.mark.usefixtures("process")
def test_thousands_of_rows_on_their_way_are_seldom_looked_at() -> None:
    keep_pauses_short()
    looks = gc.get_stats()[2]["collections"]

    rows = [{"row": [number]} for number in range(100_000)]

    assert gc.get_stats()[2]["collections"] == looks
    assert rows


@pytest.mark.usefixtures("process")
async def test_where_rows_come_by_the_hundred_the_collector_looks_now_and_then() -> None:
    keep_pauses_short()
    collecting = asyncio.create_task(collect_seldom(3600))
    await asyncio.sleep(0)
    looks = gc.get_stats()[0]["collections"]
    for _ in range(10):
        rows = [{"row": [number]} for number in range(100_000)]
        assert rows
        del rows
    assert gc.get_stats()[0]["collections"] == looks
    await end(collecting)

    looks = gc.get_stats()[2]["collections"]
    collecting = asyncio.create_task(collect_seldom(0.001))
    await eventually(lambda: gc.get_stats()[2]["collections"] > looks)
    await end(collecting)


@pytest.mark.usefixtures("process")
def test_a_thread_that_computes_gives_way_soon() -> None:
    keep_pauses_short()

    assert sys.getswitchinterval() < 0.001
