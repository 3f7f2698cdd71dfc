import os
from collections.abc import Iterator

import pytest

from tests.stack.engine import Engine, NoEngineError, some_engine
from tests.stack.standins import make_python


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine with our base image; minutes, and so on demand only."""
    if not os.environ.get("TEST_STACK"):
        pytest.skip("images are built on demand only: make test-stack")
    try:
        with some_engine(tmp_path_factory.mktemp("engine")) as engine:
            make_python(engine)
            yield engine
    except NoEngineError as error:
        pytest.skip(f"no container engine can be had: {error}")
