"""`batchyard.ray` on a Ray cluster of its own, against a real gateway and dispatcher."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.contract.conftest import MODEL, Caller
from tests.contract.engine import REFUSE, WAIT
from tests.contract.user_commands import Command
from tests.eventually import wait_until

_SECONDS = 280

_PROGRAM = f"""
import json, sys
import ray
from batchyard.ray import BatchyardModel, run

ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=40)
ray.data.DataContext.get_current().enable_progress_bars = False
said = {{5: {REFUSE!r}, 6: {WAIT!r} if sys.argv[1] == "wait" else "text 6"}}
rows = [{{"id": n, "text": said.get(n, f"text {{n}}")}} for n in range(12)]
dataset = ray.data.from_items(rows, override_num_blocks=3)
if sys.argv[1] != "map_batches":
    found = run(dataset, "{{{{ text }}}}", model="{MODEL}", concurrency=2)
else:
    found = dataset.map_batches(
        BatchyardModel,
        fn_constructor_args=("{{{{ text }}}}",),
        fn_constructor_kwargs={{"model": "{MODEL}"}},
        concurrency=1,
    )
print(json.dumps(sorted(found.take_all(), key=lambda row: row["id"])))
"""


def _start(caller: Caller, folder: Path, way: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, way],
        env=Command(caller, folder).environment() | {"RAY_AUTH_MODE": "disabled"},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _run(caller: Caller, folder: Path, way: str) -> list[dict[str, Any]]:
    with _start(caller, folder, way) as process:
        out, err = process.communicate(timeout=_SECONDS)
    assert process.returncode == 0, err
    found: list[dict[str, Any]] = json.loads(out)
    return found


def _batches(caller: Caller) -> dict[str, dict[str, Any]]:
    return {one["id"]: one for one in caller.http.get("/v1/batches").json()["data"]}


def test_blocks_are_batches_and_the_same_program_asks_nothing_twice(
    acme: Caller, tmp_path: Path
) -> None:
    first = _run(acme, tmp_path, "run")
    made = _batches(acme)
    second = _run(acme, tmp_path, "run")

    assert [row["id"] for row in first] == list(range(12))
    assert [row["answer"] for row in first] == [None if n == 5 else f"TEXT {n}" for n in range(12)]
    assert first[5]["error_code"] == "context_length_exceeded"
    assert first == second
    assert [one["request_counts"]["total"] for one in made.values()] == [4, 4, 4]
    assert set(_batches(acme)) == set(made)


def test_a_driver_that_was_killed_in_the_middle_asks_nothing_twice(
    acme: Caller, tmp_path: Path
) -> None:
    def waiting() -> list[str]:
        """The block that is half done, once another one is whole."""
        counts = {name: one["request_counts"] for name, one in _batches(acme).items()}
        done = {name: (one["completed"], one["failed"]) for name, one in counts.items()}
        return [name for name in done if done[name] == (1, 1) and (4, 0) in done.values()]

    with _start(acme, tmp_path, "wait") as killed:
        try:
            wait_until(lambda: bool(waiting()) or killed.poll() is not None, _SECONDS)
            assert killed.poll() is None, killed.communicate()
            [half] = waiting()
            before = _batches(acme)
        finally:
            # No chance to tell anybody, and Ray dies with it.
            killed.kill()
    acme.yard.engine.release(half)
    found = _run(acme, tmp_path, "wait")

    after = _batches(acme)
    assert before[half]["status"] == "in_progress"
    assert [row["id"] for row in found] == list(range(12))
    assert found[6]["answer"] == WAIT.upper()
    assert set(before) <= set(after)
    assert [one["request_counts"]["total"] for one in after.values()] == [4, 4, 4]
    assert [one["status"] for one in after.values()] == ["completed"] * 3


def test_the_model_takes_blocks_as_ray_gives_them(acme: Caller, tmp_path: Path) -> None:
    found = _run(acme, tmp_path, "map_batches")

    assert [row["answer"] for row in found] == [None if n == 5 else f"TEXT {n}" for n in range(12)]
