import os
import shutil

import pytest

from tests.k8s.rendering import OVERLAYS, Document, render


@pytest.fixture(scope="session")
def overlays(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Document]]:
    """Every overlay as documents; for reading only."""
    if shutil.which("kubectl") is None:
        reason = "no kubectl: apt-get install kubernetes-client"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return {name: render(name, tmp_path_factory.mktemp(name)) for name in OVERLAYS}


@pytest.fixture(scope="session", params=OVERLAYS)
def documents(
    overlays: dict[str, list[Document]], request: pytest.FixtureRequest
) -> list[Document]:
    """Those of one overlay."""
    return overlays[request.param]
