import asyncio
import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from shared.interpreter import collect_seldom, collector_paused, prepare_to_serve
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

    prepare_to_serve()

    assert not any(one is there for one in gc.get_objects())


@pytest.mark.usefixtures("process")
def test_thousands_of_rows_on_their_way_are_seldom_looked_at() -> None:
    prepare_to_serve()
    looks = gc.get_stats()[2]["collections"]

    rows = [{"row": [number]} for number in range(100_000)]

    assert gc.get_stats()[2]["collections"] == looks
    assert rows


@pytest.mark.usefixtures("process")
async def test_where_rows_come_by_the_hundred_the_collector_looks_now_and_then() -> None:
    prepare_to_serve()
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
    prepare_to_serve()

    assert sys.getswitchinterval() < 0.001


#: New types of ours in each turn, first decoded by three threads at once.
_DECODED_BY_THREADS = """
import sys
from threading import Barrier, Thread

import msgspec

from shared.interpreter import build_types

sys.modules["shared.made"] = sys.modules["__main__"]
sys.setswitchinterval(1e-6)
for _ in range(1000):
    Inner = msgspec.defstruct("Inner", [("number", "int")], module="shared.made")
    fields = [(f"field{number}", "Inner | None", None) for number in range(20)]
    Outer = msgspec.defstruct("Outer", fields, module="shared.made")
    build_types()
    together = Barrier(3)

    def decode():
        together.wait()
        msgspec.json.decode(b'{"field19": {"number": 1}}', type=Outer)

    threads = [Thread(target=decode) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_threads_may_decode_types_that_are_built() -> None:
    ended = subprocess.run([sys.executable, "-c", _DECODED_BY_THREADS], check=False, timeout=300)

    assert ended.returncode == 0
