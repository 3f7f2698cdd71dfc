"""What vLLM's registry imports with the lock of workers that have a GPU, on a machine without one.

`make test ARGS="-m on_demand tests/engine/test_cuda_lock.py"` makes an environment of the lock, of
9 GB, which takes minutes, and removes it. `TEST_CUDA_PYTHON` names the Python of one that is
there.
"""

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine import architectures, test_architectures
from tests.locks import normalised, path_of, pins
from tests.wheel import built_wheel

pytestmark = [pytest.mark.on_demand, pytest.mark.timeout(3600)]

_LOCK = "worker-cuda"
#: What vLLM's libraries are linked with of the driver. Whoever calls one is told that there is no
#: device: a driver is no part of a lock, and comes with the machine.
_DRIVER = """\
int cuGetProcAddress_v2() { return 100; }
int cuPointerGetAttribute() { return 100; }
int cuTensorMapEncodeTiled() { return 100; }
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An environment with all that the image of such workers has, and our own rooms as there."""
    if there := os.environ.get("TEST_CUDA_PYTHON"):
        yield there
        return
    place = tmp_path_factory.mktemp("cuda")
    wheel = built_wheel(place, ("shared", "worker"))
    pip = [str(place / "venv/bin/pip"), "install", "--quiet", "--no-deps", "--no-cache-dir"]
    try:
        for command in (
            [sys.executable, "-m", "venv", str(place / "venv")],
            [*pip, "--no-compile", "--require-hashes", "-r", str(path_of(_LOCK))],
            [*pip, "--no-index", str(wheel)],
        ):
            subprocess.run(command, timeout=3000, check=True)
        yield str(place / "venv/bin/python")
    finally:
        shutil.rmtree(place / "venv", ignore_errors=True)


def test_the_environment_is_that_of_the_lock(python: str) -> None:
    listed = subprocess.run(
        [python, "-m", "pip", "list", "--format", "json"], capture_output=True, check=True
    )

    has = {normalised(one["name"]): one["version"] for one in json.loads(listed.stdout)}
    pinned = pins(_LOCK)
    assert {name: has.get(name) for name in pinned} == pinned


def test_with_the_lock_for_gpus_all_that_see_or_hear_are_imported(
    python: str, tmp_path: Path
) -> None:
    (tmp_path / "driver.c").write_text(_DRIVER)
    library = [str(tmp_path / "libcuda.so.1"), str(tmp_path / "driver.c")]
    subprocess.run(["cc", "-w", "-shared", "-fPIC", "-o", *library], check=True)

    # With -P, the modules beside the program are not found by their short names.
    done = subprocess.run(
        [python, "-P", "-W", "ignore", str(architectures.__file__)],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-2000:]
    found = architectures.Imports(**json.loads(done.stdout))
    assert Counter(found.not_imported.values()) == test_architectures.NOT_IMPORTED["cuda"]
    assert found.media == test_architectures.MEDIA_NOT_IMPORTED["cuda"]
