import copy

import pytest

from tests.k8s.pods import pods
from tests.k8s.rendering import Document
from tests.k8s.rules import SECRETS
from tests.k8s.settings_names import READERS, wrong_names


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
                    if "configMapRef" in source:
                        names |= set(maps[source["configMapRef"]["name"]])
                    else:
                        names |= SECRETS[source["secretRef"]["name"]]
                found += [f"{pod.name}: {w}" for w in wrong_names(container["image"], names)]
    assert any("gateway" in pod.name for pod in pods(documents))
    return found
