"""`batchyard.ray` on a Ray cluster of its own, against a real gateway and dispatcher."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.contract.conftest import MODEL, Caller
from tests.contract.engine import REFUSE
from tests.contract.user_commands import Command

_PROGRAM = f"""
import json, sys
import ray
from batchyard.ray import BatchyardModel, run

ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=40)
ray.data.DataContext.get_current().enable_progress_bars = False
rows = [{{"id": n, "text": {REFUSE!r} if n == 5 else f"text {{n}}"}} for n in range(12)]
dataset = ray.data.from_items(rows, override_num_blocks=3)
if sys.argv[1] == "run":
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


def _run(caller: Caller, folder: Path, way: str) -> list[dict[str, Any]]:
    ended = subprocess.run(
        [sys.executable, "-c", _PROGRAM, way],
        env=Command(caller, folder).environment() | {"RAY_AUTH_MODE": "disabled"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found: list[dict[str, Any]] = json.loads(ended.stdout)
    return found


def test_blocks_are_batches_and_the_same_program_asks_nothing_twice(
    acme: Caller, tmp_path: Path
) -> None:
    first = _run(acme, tmp_path, "run")
    made = acme.http.get("/v1/batches").json()["data"]
    second = _run(acme, tmp_path, "run")
    still = acme.http.get("/v1/batches").json()["data"]

    assert [row["id"] for row in first] == list(range(12))
    assert [row["answer"] for row in first] == [None if n == 5 else f"TEXT {n}" for n in range(12)]
    assert first[5]["error_code"] == "context_length_exceeded"
    assert first == second
    assert [one["request_counts"]["total"] for one in made] == [4, 4, 4]
    assert {one["id"] for one in made} == {one["id"] for one in still}


def test_the_model_takes_blocks_as_ray_gives_them(acme: Caller, tmp_path: Path) -> None:
    found = _run(acme, tmp_path, "map_batches")

    assert [row["answer"] for row in found] == [None if n == 5 else f"TEXT {n}" for n in range(12)]
