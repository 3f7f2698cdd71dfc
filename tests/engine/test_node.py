"""The death of a machine with an engine: here, of all processes of one of Ray's nodes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from shared.catalog import Lane
from tests.engine.calls import Call, tiny_catalog
from tests.engine.conftest import a_ray
from tests.eventually import eventually
from worker.engine_errors import EngineGoneError

pytest.importorskip("vllm", reason="needs the worker's dependencies")

pytestmark = [
    pytest.mark.timeout(600),
    # Ray and vLLM warn about themselves.
    pytest.mark.filterwarnings("ignore"),
]

LANE = Lane("tiny", "annex")
SEATS, ROWS = 4, 200


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    with a_ray(16) as ray:
        yield ray


async def test_after_the_death_of_a_machine_only_rows_without_an_answer_run_again(
    ray: Any, tmp_path: Path
) -> None:
    from worker.engine_deployment import ensure_engine

    catalog = tiny_catalog(tmp_path, LANE, {"CPU": 1, "annex": 1}, seats=SEATS)
    with a_machine(ray):
        engine = ensure_engine(catalog, LANE)
        first = Call(engine, "batch", [16] * ROWS)
        await eventually(lambda: len(first.results) > ROWS / 4, timeout=300)
    with pytest.raises(EngineGoneError):
        await first.task
    answered = len(first.results)
    assert answered < ROWS

    with a_machine(ray):
        second = Call(engine, "batch", [16] * (ROWS - answered))
        answers = await second.end()

    assert len(answers) == ROWS - answered


@contextmanager
def a_machine(ray: Any) -> Iterator[None]:
    """One more machine in the cluster, on which the lane runs; it dies at the end."""
    program = str(Path(sys.executable).parent / "ray")
    address = ray.get_runtime_context().gcs_address
    node = subprocess.Popen(
        [program, "start", f"--address={address}", "--num-cpus=4", '--resources={"annex": 1}',
         "--block"],
        env=os.environ | {"RAY_AUTH_MODE": "token"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield
    finally:
        machine = psutil.Process(node.pid)
        for process in (machine, *machine.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        node.wait()
