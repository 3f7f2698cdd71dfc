import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stack.engine import ContainerEngine, NoEngineError, some_engine
from tests.stack.images import build
from tests.stack.standins import make_images


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            # The first one waits for images; engines start slowly on a CPU.
            item.add_marker(pytest.mark.timeout(3600))


@pytest.fixture(scope="session")
def engine() -> Iterator[ContainerEngine]:
    """An engine with all images that are not ours; minutes, and so on demand only."""
    if not os.environ.get("TEST_STACK"):
        pytest.skip("images are built on demand only: make test-stack")
    try:
        with some_engine() as engine:
            make_images(engine)
            yield engine
    except NoEngineError as error:
        pytest.skip(f"no container engine can be had: {error}")


@pytest.fixture(scope="session")
def images(engine: ContainerEngine) -> dict[str, str]:
    """Those of the fleet without a GPU, by room; each as our unchanged Dockerfile makes it."""
    return {name: build(engine, name) for name in ("gateway", "dispatcher", "worker-cpu")}
