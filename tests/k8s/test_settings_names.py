"""The variables that are deployed against the classes that read them.

Nothing else notices a misspelt one: a setting with a default would silently keep it.
"""

import copy
from collections.abc import Iterator, Mapping

import pytest

from dispatcher.settings import DispatcherSettings
from gateway.settings import GatewaySettings
from shared.settings import SharedSettings
from tests.k8s.pods import pods
from tests.k8s.rendering import Document
from worker.settings import WorkerSettings

#: What runs in which image, and reads its settings there.
READERS: Mapping[str, type[SharedSettings]] = {
    "batchyard/gateway": GatewaySettings,
    "batchyard/dispatcher": DispatcherSettings,
    "batchyard/worker": WorkerSettings,
    "batchyard/worker-cpu": WorkerSettings,
}
_PREFIX = "BATCHYARD_"


def wrong_names(image: str, names: set[str]) -> Iterator[str]:
    """Variables that nobody reads, and settings without a default that nobody sets."""
    fields = READERS[image.partition(":")[0]].model_fields
    known = {f"{_PREFIX}{name.upper()}" for name in fields}
    required = {f"{_PREFIX}{name.upper()}" for name, f in fields.items() if f.is_required()}
    ours = {name for name in names if name.startswith(_PREFIX)}
    yield from (f"nobody reads {name}" for name in sorted(ours - known))
    yield from (f"nobody sets {name}" for name in sorted(required - ours))


def test_every_variable_is_a_setting_and_every_required_setting_is_set(
    documents: list[Document],
) -> None:
    assert _wrong(documents) == []


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("BATCHYARD_HEALTH_PORT", "nobody reads BATCHYARD_HEALT_PORT"),
        ("BATCHYARD_RAY_ADDRESS", "nobody sets BATCHYARD_RAY_ADDRESS"),
    ],
)
def test_a_misspelt_variable_is_found(documents: list[Document], right: str, wrong: str) -> None:
    fleet = copy.deepcopy(documents)
    [dispatcher] = [pod for pod in pods(fleet) if pod.name == "dispatcher"]
    [variable] = [v for v in dispatcher.spec["containers"][0]["env"] if v["name"] == right]
    variable["name"] = right.replace("HEALTH", "HEALT").replace("ADDRESS", "ADRESS")

    assert any(wrong in problem for problem in _wrong(fleet))


def _wrong(documents: list[Document]) -> list[str]:
    maps = {d["metadata"]["name"]: d["data"] for d in documents if d["kind"] == "ConfigMap"}
    found = []
    for pod in pods(documents):
        for container in pod.containers:
            if container["image"].partition(":")[0] in READERS:
                names = {variable["name"] for variable in container.get("env", [])}
                for source in container.get("envFrom", []):
                    names |= set(maps[source["configMapRef"]["name"]])
                found += [f"{pod.name}: {w}" for w in wrong_names(container["image"], names)]
    assert any("gateway" in pod.name for pod in pods(documents))
    return found
