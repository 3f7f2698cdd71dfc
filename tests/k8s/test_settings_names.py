import copy

import pytest

from cli.fleet.environments import SECRET_SETTINGS
from tests.k8s.pods import Pod, pods
from tests.k8s.rendering import Document
from tests.k8s.rules import SECRETS
from tests.k8s.settings_names import READERS, wrong_names
from worker.settings import LOGINS_VARIABLE


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


@pytest.mark.parametrize("variable", sorted(SECRET_SETTINGS & SECRETS["batchyard-lane"]))
def test_a_login_in_the_environment_of_an_engine_is_found(
    documents: list[Document], variable: str
) -> None:
    fleet = copy.deepcopy(documents)
    [cpu] = [pod for pod in pods(fleet) if pod.name.endswith("cpu")]
    cpu.spec["containers"][0]["env"].append({"name": variable, "value": "hush"})

    assert [f"{cpu.name}: engines have {variable}"] == _wrong(fleet)


def test_logins_of_lane_jobs_are_files_of_the_head_alone(documents: list[Document]) -> None:
    with_files = {
        pod.name
        for pod in pods(documents)
        for container in pod.containers
        if _secret_files(pod, container)
    }

    assert len(with_files) == 1
    assert "head" in with_files.pop()
    for pod in pods(documents):
        if "ray" in pod.containers[0]["name"]:
            environment = {variable["name"] for variable in pod.containers[0]["env"]}
            assert not environment & SECRET_SETTINGS


def test_the_gateway_has_the_cache_secret_of_lane_jobs(documents: list[Document]) -> None:
    [gateway] = [pod for pod in pods(documents) if pod.name == "gateway"]
    variables = {variable["name"]: variable for variable in gateway.containers[0]["env"]}

    source = variables["BATCHYARD_CACHE_SECRET"]["valueFrom"]["secretKeyRef"]

    assert source == {"name": "batchyard-lane", "key": "BATCHYARD_CACHE_SECRET"}


def _secret_files(pod: Pod, container: Document) -> frozenset[str]:
    """The settings that the container finds in the folder of its secrets."""
    volumes = {volume["name"]: volume for volume in pod.spec.get("volumes", [])}
    for variable in container.get("env", []):
        for mount in container.get("volumeMounts", []):
            if variable["name"] == LOGINS_VARIABLE and mount["mountPath"] == variable["value"]:
                return SECRETS[volumes[mount["name"]]["secret"]["secretName"]]
    return frozenset()


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
                files = _secret_files(pod, container)
                found += [f"{pod.name}: {w}" for w in wrong_names(container["image"], names, files)]
    assert any("gateway" in pod.name for pod in pods(documents))
    return found
