import json
import os
from collections.abc import Iterator

import pytest

from tests.k8s.rendering import ROOT
from tests.stack.engine import ContainerEngine, show
from tests.stack.images import build
from tests.stack.standins import PYTHON

#: As compose.yaml and Kubernetes run them.
_CLOSED = ("--rm", "--read-only", "--cap-drop=ALL", "--tmpfs=/tmp", "--network=none")
_SIZES = ROOT / "benchmarks" / "images.json"
_MEGABYTE = 1_000_000
_LIGHT = ("gateway", "dispatcher")

every_image = pytest.mark.parametrize("name", [*_LIGHT, "worker-cpu"])
light_images = pytest.mark.parametrize("name", _LIGHT)


@light_images
def test_without_settings_it_says_what_is_missing(
    engine: ContainerEngine, images: dict[str, str], name: str
) -> None:
    done = engine.run("run", *_CLOSED, images[name], check=False)

    assert done.returncode == 2
    assert "amqp_url" in done.stderr.lower()


@every_image
def test_it_is_nobody_and_cannot_write(
    engine: ContainerEngine, images: dict[str, str], name: str
) -> None:
    image = images[name]

    assert engine.ask("run", *_CLOSED, image, "id", "-u") == "10001"
    assert engine.run("run", *_CLOSED, image, "touch", "/opt/x", check=False).returncode == 1


@light_images
def test_neither_torch_nor_ray_is_in_it(
    engine: ContainerEngine, images: dict[str, str], name: str
) -> None:
    for module in ("torch", "ray", "vllm", "numpy"):
        done = engine.run(
            "run", *_CLOSED, images[name], "python", "-c", f"import {module}", check=False
        )
        assert "ModuleNotFoundError" in done.stderr


def test_keys_can_be_made_where_the_gateway_runs(
    engine: ContainerEngine, images: dict[str, str]
) -> None:
    done = engine.run("run", *_CLOSED, images["gateway"], "batchyard", "keys", "--help")

    assert "create" in done.stdout


def test_the_worker_holds_a_catalog_against_its_own_vllm(
    engine: ContainerEngine, images: dict[str, str]
) -> None:
    assert _checked_catalog(engine, images["worker-cpu"]) == "ok"


@every_image
def test_its_size_is_the_one_that_is_kept(
    engine: ContainerEngine, images: dict[str, str], name: str
) -> None:
    _assert_size(engine, images[name], name)


@pytest.fixture(scope="module")
def cuda_image(engine: ContainerEngine) -> Iterator[str]:
    """Gone afterwards: with what its build leaves behind it takes more than 20 GB."""
    if not os.environ.get("TEST_STACK_CUDA"):
        pytest.skip("built on demand only, since it takes 25 GB of disk: TEST_STACK_CUDA=1")
    image = build(engine, "worker")
    yield image
    engine.run("image", "rm", image)
    engine.run("builder", "prune", "--force")


def test_the_image_for_cuda_is_like_the_others(engine: ContainerEngine, cuda_image: str) -> None:
    """Without a GPU no engine starts in it; what can be known without one is known."""
    assert engine.ask("run", *_CLOSED, cuda_image, "id", "-u") == "10001"
    assert engine.run("run", *_CLOSED, cuda_image, "touch", "/opt/x", check=False).returncode == 1
    assert _checked_catalog(engine, cuda_image) == "ok"
    _assert_size(engine, cuda_image, "worker")


def _checked_catalog(engine: ContainerEngine, image: str) -> str:
    """The end of what the image's own check says of the catalog that we ship."""
    catalog = f"--volume={ROOT / 'k8s/base/catalog.yaml'}:/etc/batchyard/catalog.yaml:ro"
    check = ("python", "-m", "worker", "check", "/etc/batchyard/catalog.yaml")
    return engine.ask("run", *_CLOSED, catalog, image, *check).splitlines()[-1]


def _assert_size(engine: ContainerEngine, image: str, name: str) -> None:
    kept = json.loads(_SIZES.read_text())["megabytes_above_base"]
    size = (engine.image_bytes(image) - engine.image_bytes(PYTHON)) / _MEGABYTE
    show(f"{name}: {size:.0f} MB above its base")

    assert size == pytest.approx(kept[name], rel=0.05), f"write {size:.0f} into {_SIZES.name}"
