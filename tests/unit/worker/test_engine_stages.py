"""What vLLM's own lines say of a start; they are those of vLLM 0.29."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engine_stages import StageClock, core_stages

_BEGIN = "(EngineCore pid=77) INFO 11-23 20:01:02 [core.py:369] "
CARD = f"""
{_BEGIN}Loading weights took 1.75 seconds
{_BEGIN}Model loading took 14.25 GiB memory and 2.500000 seconds
{_BEGIN}Graph capturing finished in 3 secs, took 0.51 GiB
{_BEGIN}init engine (profile, create kv cache, warmup model) took 10.50 s (compilation: 4.25 s)
"""
PROCESSOR = f"""
{_BEGIN}Loading weights took 0.25 seconds
{_BEGIN}init engine (profile, create kv cache, warmup model) took 1.50 s
"""


def test_the_core_of_a_card_is_divided_by_what_it_has_written() -> None:
    assert core_stages(30, CARD) == {
        "core": pytest.approx(17),
        "weights": 2.5,
        "compile": 4.25,
        "graphs": 3,
        "profile": 3.25,
    }


def test_the_core_of_a_processor_has_no_graphs() -> None:
    assert core_stages(8, PROCESSOR) == {"core": 6.25, "weights": 0.25, "profile": 1.5}


def test_of_workers_that_load_at_the_same_time_the_slowest_counts() -> None:
    slower = PROCESSOR.replace("0.25", "4.00")

    assert core_stages(8, PROCESSOR + slower)["weights"] == 4


def test_a_stage_that_took_no_time_is_there() -> None:
    text = PROCESSOR.replace("0.25", "0.00").replace("1.50", "0.00")

    assert core_stages(8, text) == {"core": 8, "weights": 0, "profile": 0}


def test_without_a_line_of_it_the_core_is_whole() -> None:
    assert core_stages(8, "nothing of this kind") == {"core": 8}


@given(st.floats(0, 100))
def test_stages_of_a_core_sum_up_to_it(seconds: float) -> None:
    stages = core_stages(seconds, CARD)

    assert sum(stages.values()) == pytest.approx(seconds)
    assert min(stages.values()) >= 0


def test_a_clock_begins_where_its_process_did_and_gives_each_second_once() -> None:
    clock = StageClock()
    began_at = time.monotonic()
    clock.end("process")
    time.sleep(0.1)
    clock.end("imports")
    clock.end("server")
    time.sleep(0.1)
    clock.end("server")
    clock.note_row(began_at)
    first = clock.start.first_row_seconds
    clock.note_row(began_at - 100)

    stages = clock.start.stages
    assert list(stages) == ["process", "imports", "server"]
    assert stages["process"] > 0
    assert 0.1 <= stages["imports"] < 10
    assert 0.1 <= stages["server"] < 10
    assert first is not None
    assert clock.start.first_row_seconds == first


def test_the_stages_of_a_restart_stand_beside_those_of_the_start() -> None:
    clock = StageClock()
    clock.end("process")
    clock.note_row(time.monotonic())
    assert clock.has_answered
    before = clock.start

    clock.begin_again()
    assert not clock.has_answered
    clock.end("configuration")
    clock.begin_again()
    clock.end("core")

    again = clock.start
    assert (again.stages, again.first_row_seconds) == (before.stages, before.first_row_seconds)
    assert list(again.last_restart_stages) == ["core"]
    assert (before.restarts, again.restarts) == (0, 2)


#: Tells by a pipe how much of its log, which is its output, it takes for its own at three times.
WRITER = """
import json, os, sys
from worker.engine_stages import StageClock

def told():
    text = "".join(clock.written())
    return [len(text), text[-20:]]

clock = StageClock()
os.truncate("/proc/self/fd/1", 64 * 1024 * 1024)
os.write(1, b"dies of this\\n")
found = [told()]
clock.begin_again()
os.write(1, b"next start\\n")
found.append(told())
os.truncate("/proc/self/fd/1", 0)
os.write(1, b"turned\\n")
found.append(told())
sys.stderr.write(json.dumps(found))
"""


def test_of_a_log_of_weeks_only_the_end_is_read(tmp_path: Path) -> None:
    with (tmp_path / "log").open("ab") as log:
        done = subprocess.run(
            [sys.executable, "-c", WRITER], stdout=log, stderr=subprocess.PIPE, check=True
        )

    (length, end), after, turned = json.loads(done.stderr)
    assert end.endswith("dies of this\n")
    assert length == 4 * 1024 * 1024
    assert after == [11, "next start\n"]
    assert turned == [7, "turned\n"]
