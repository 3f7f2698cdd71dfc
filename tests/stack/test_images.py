import pytest

from tests.containers.test_images import IMAGES
from tests.k8s.rendering import ROOT
from tests.stack.engine import Engine

pytestmark = pytest.mark.timeout(1800)

#: As compose.yaml and Kubernetes run them.
_CLOSED = ("--rm", "--read-only", "--cap-drop=ALL", "--tmpfs=/tmp", "--network=none")


@pytest.fixture(scope="session", params=["gateway", "dispatcher"])
def image(engine: Engine, request: pytest.FixtureRequest) -> str:
    """Built from our unchanged Dockerfile; its name."""
    name: str = request.param
    tag = f"batchyard/{name}:tested"
    engine.run(
        "build", "--network=host", f"--file={ROOT / IMAGES[name].file}", f"--tag={tag}", str(ROOT)
    )
    return tag


def test_without_settings_it_says_what_is_missing(engine: Engine, image: str) -> None:
    done = engine.run("run", *_CLOSED, image, check=False)

    assert done.returncode == 2
    assert "amqp_url" in done.stderr.lower()


def test_it_is_nobody_and_cannot_write(engine: Engine, image: str) -> None:
    assert engine.run("run", *_CLOSED, image, "id", "-u").stdout.strip() == "10001"
    assert engine.run("run", *_CLOSED, image, "touch", "/opt/x", check=False).returncode == 1


def test_neither_torch_nor_ray_is_in_it(engine: Engine, image: str) -> None:
    for module in ("torch", "ray", "vllm", "numpy"):
        done = engine.run("run", *_CLOSED, image, "python", "-c", f"import {module}", check=False)
        assert "ModuleNotFoundError" in done.stderr


def test_keys_can_be_made_where_the_gateway_runs(engine: Engine) -> None:
    if not engine.has_image("batchyard/gateway:tested"):
        pytest.skip("the gateway's image was not chosen")

    done = engine.run("run", *_CLOSED, "batchyard/gateway:tested", "batchyard", "keys", "--help")

    assert "create" in done.stdout
