import base64
import copy
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from cli.credentials import compose_variables
from cli.fleet.environments import SECRET_SETTINGS
from shared.catalog_file import load_catalog
from tests.containers import compose
from tests.containers.compose import Compose
from tests.k8s.rendering import MANIFESTS, ROOT, read
from tests.k8s.settings_names import READERS, wrong_names

#: Made for people on this machine; no container gets it.
_FOR_CLIENTS = {"DEMO_AMQP_URL"}

PLANTED: dict[str, tuple[Callable[[Compose], object], str]] = {
    "a port for everybody": (
        lambda c: c["services"]["gateway"].update(ports=["8000:8000"]),
        "8000:8000 is open to the network",
    ),
    "the latest image": (
        lambda c: c["services"]["redis"].update(image="redis:latest"),
        "redis:latest is not pinned",
    ),
    "an image without a tag": (
        lambda c: c["services"]["s3"].update(image="${S3_IMAGE:-minio}"),
        "minio is not pinned",
    ),
    "a service that nobody asks": (
        lambda c: c["services"]["s3"].pop("healthcheck"),
        "s3: nobody knows",
    ),
    "a start before its server": (
        lambda c: c["services"]["gateway"]["depends_on"].update(
            redis={"condition": "service_started"}
        ),
        "gateway: begins before redis is well",
    ),
    "a dependence on nothing": (
        lambda c: c["services"]["gateway"]["depends_on"].update(
            minio={"condition": "service_healthy"}
        ),
        "there is no minio",
    ),
    "a volume without a name": (
        lambda c: c["services"]["redis"].update(volumes=["data:/data"]),
        "data is no named volume",
    ),
    "a file that is not there": (
        lambda c: c["services"]["redis"].update(volumes=["./redis.conf:/etc/redis.conf:ro"]),
        "there is no ./redis.conf",
    ),
    "a file that can be written": (
        lambda c: c["services"]["redis"].update(volumes=["./k8s/base/redis.conf:/etc/r.conf"]),
        "./k8s/base/redis.conf can be written",
    ),
    "a password with a default": (
        lambda c: c["services"]["redis"]["environment"].update(
            REDISCLI_AUTH="x", REDIS_PASSWORD="${REDIS_PASSWORD:-changeme}"
        ),
        "REDIS_PASSWORD has a default",
    ),
    "a root that can be written": (
        lambda c: c["services"]["worker"].update(read_only=False),
        "worker: its root can be written",
    ),
    "a folder in memory without an owner": (
        lambda c: c["services"]["redis"].update(tmpfs=["/run/redis"]),
        "redis: /run/redis is root's",
    ),
    "an object store of Ray's own choice": (
        lambda c: c["services"]["worker"].update(command=["ray", "start"]),
        "worker: Ray's object store does not fit",
    ),
    "an object store larger than its memory": (
        lambda c: c["services"]["ray-head"].update(shm_size="1gb"),
        "ray-head: Ray's object store does not fit",
    ),
    "all rights": (
        lambda c: c["services"]["worker"].update(privileged=True),
        "worker: privileged",
    ),
    "a name that old versions refuse": (lambda c: c.update(name="batchyard"), "has a name"),
    "a Dockerfile that is not there": (
        lambda c: c["services"]["gateway"]["build"].update(dockerfile="gateway/dockerfile"),
        "there is no gateway/dockerfile",
    ),
    "memory without a limit": (
        lambda c: c["services"]["worker"].pop("mem_limit"),
        "worker: its memory is not limited",
    ),
    "a log without a limit": (
        lambda c: c["services"]["gateway"].update(logging={"driver": "json-file"}),
        "gateway: its log grows for ever",
    ),
    "a service that stays dead": (
        lambda c: c["services"]["dispatcher"].pop("restart"),
        "dispatcher: not started again",
    ),
}
PLANTED_FOR_SCHEMA: dict[str, tuple[Callable[[Compose], object], str]] = {
    "a misspelt field": (
        lambda c: c["services"]["redis"].update(heathcheck={}),
        "'heathcheck'",
    ),
    "a misspelt field of a check": (
        lambda c: c["services"]["redis"]["healthcheck"].update(retry=3),
        "'retry'",
    ),
    "a condition that there is not": (
        lambda c: c["services"]["gateway"]["depends_on"].update(redis={"condition": "healthy"}),
        "is not valid",
    ),
    "a misspelt section": (lambda c: c.update(service={}), "'service'"),
}


@pytest.fixture
def fleet() -> Compose:
    return compose.load(compose.FILE.read_text())


def test_no_rule_is_broken(fleet: Compose) -> None:
    assert list(compose.problems(fleet)) == []


@pytest.mark.parametrize(("change", "complaint"), PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_error_is_found(
    fleet: Compose, change: Callable[[Compose], object], complaint: str
) -> None:
    # The anchors of the file make one dict of several services.
    fleet = json.loads(json.dumps(fleet))
    change(fleet)

    assert complaint in "\n".join(compose.problems(fleet))


def test_all_files_are_valid() -> None:
    for file in (compose.FILE, compose.GPU_FILE, compose.S3_FILE, compose.MONITORING_FILE):
        assert _schema_problem(compose.load(file.read_text())) == ""


@pytest.mark.parametrize(
    ("change", "complaint"), PLANTED_FOR_SCHEMA.values(), ids=PLANTED_FOR_SCHEMA.keys()
)
def test_a_planted_error_is_found_by_the_schema(
    fleet: Compose, change: Callable[[Compose], object], complaint: str
) -> None:
    fleet = json.loads(json.dumps(fleet))
    change(fleet)

    assert complaint in _schema_problem(fleet)


def test_a_key_that_stands_twice_is_found() -> None:
    with pytest.raises(yaml.YAMLError, match="image twice"):
        compose.load("services: {a: {image: x:1, image: y:1}}")


def test_the_made_variables_are_those_that_are_asked_for() -> None:
    assert compose.required(compose.FILE.read_text()) == set(compose_variables()) - _FOR_CLIENTS


@pytest.mark.parametrize("name", sorted(set(compose_variables()) - _FOR_CLIENTS))
def test_without_a_credential_it_does_not_start_and_says_how(fleet: Compose, name: str) -> None:
    variables = {**compose_variables(), name: ""}

    with pytest.raises(compose.MissingVariableError, match=f"{name}: run make credentials first"):
        compose.interpolated(fleet, variables)


def test_the_made_variables_fit_together(fleet: Compose) -> None:
    variables = compose_variables()
    services = compose.interpolated(fleet, variables)["services"]

    users = json.loads(
        base64.b64decode(services["rabbitmq"]["environment"]["RABBITMQ_DEFINITIONS"])
    )
    assert [user["name"] for user in users["users"]] == ["batchyard", "demo"]
    password = services["redis"]["environment"]["REDISCLI_AUTH"]
    assert f":{password}@redis:6379/" in services["gateway"]["environment"]["BATCHYARD_REDIS_URL"]
    assert (
        services["s3"]["environment"]["MINIO_ROOT_PASSWORD"]
        == services["gateway"]["environment"]["BATCHYARD_S3_SECRET_KEY"]
    )
    # Live calls and batches of a tenant find each other's prompts in the cache.
    of_gateway, of_lanes = (
        services[name]["environment"]["BATCHYARD_CACHE_SECRET"] for name in ("gateway", "ray-head")
    )
    assert of_gateway == of_lanes
    lane_password = services["redis"]["environment"]["LANE_PASSWORD"]
    lane_url = services["ray-head"]["environment"]["BATCHYARD_REDIS_URL"]
    assert f"lane:{lane_password}@redis:6379/" in lane_url
    assert (
        services["ray-head"]["environment"]["RAY_AUTH_TOKEN"]
        == services["dispatcher"]["environment"]["BATCHYARD_RAY_TOKEN"]
    )


def test_every_variable_is_a_setting_and_every_required_setting_is_set(fleet: Compose) -> None:
    assert _wrong_names(fleet) == []


def test_a_misspelt_variable_is_found(fleet: Compose) -> None:
    environment = copy.deepcopy(fleet["services"]["dispatcher"]["environment"])
    environment["BATCHYARD_RAY_ADRESS"] = environment.pop("BATCHYARD_RAY_ADDRESS")
    fleet["services"]["dispatcher"]["environment"] = environment

    assert _wrong_names(fleet) == [
        "dispatcher: nobody reads BATCHYARD_RAY_ADRESS",
        "dispatcher: nobody sets BATCHYARD_RAY_ADDRESS",
    ]


def test_redis_refuses_writes_before_its_container_is_out_of_memory(fleet: Compose) -> None:
    redis = compose.interpolated(fleet, compose_variables())["services"]["redis"]

    assert '--maxmemory "$REDIS_MAXMEMORY"' in redis["entrypoint"][-1]
    bound, limit = redis["environment"]["REDIS_MAXMEMORY"], redis["mem_limit"]
    assert int(bound.removesuffix("mb")) <= 0.6 * 1024 * int(limit.removesuffix("g"))


def test_a_login_in_the_environment_of_an_engine_is_found(fleet: Compose) -> None:
    environment = {**fleet["services"]["worker"]["environment"], "BATCHYARD_REDIS_URL": "hush"}
    fleet["services"]["worker"]["environment"] = environment

    assert _wrong_names(fleet) == ["worker: engines have BATCHYARD_REDIS_URL"]


def test_logins_of_lane_jobs_are_files_before_ray_starts(fleet: Compose, tmp_path: Path) -> None:
    head = compose.interpolated(fleet, compose_variables())["services"]["ray-head"]
    given = {**head["environment"], "BATCHYARD_LOGINS": str(tmp_path), "PATH": os.environ["PATH"]}

    inherited = subprocess.run(
        [*head["entrypoint"], "env", "-0"], env=given, check=True, capture_output=True, text=True
    ).stdout

    secret = {name: text for name, text in given.items() if name in SECRET_SETTINGS}
    assert len(secret) == 4
    assert {path.name: path.read_text().strip() for path in tmp_path.iterdir()} == secret
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}
    assert not [text for text in secret.values() if text in inherited]
    assert f"BATCHYARD_LOGINS={tmp_path}" in inherited.split("\0")


def test_the_image_of_the_s3_server_is_one_variable(fleet: Compose) -> None:
    own = {**compose_variables(), "S3_IMAGE": "another/minio:1"}

    assert compose.interpolated(fleet, own)["services"]["s3"]["image"] == "another/minio:1"


def test_with_an_s3_server_elsewhere_none_is_started_and_every_process_uses_that_one(
    fleet: Compose,
) -> None:
    both = compose.merged(fleet, compose.load(compose.S3_FILE.read_text()))
    place = {"S3_ENDPOINT": "https://s3.example", "S3_REGION": "eu-central-1", "S3_BUCKET": "acme"}

    services = compose.interpolated(both, {**compose_variables(), **place})["services"]

    assert list(compose.problems(both)) == []
    assert services["s3"]["image"] == services["gateway"]["image"]
    assert services["s3"]["command"] == ["sleep", "infinity"]
    assert services["s3"]["environment"]["BATCHYARD_S3_ENDPOINT"] == "https://s3.example"
    for name in ("gateway", "dispatcher", "ray-head"):
        environment = services[name]["environment"]
        assert {key: environment[f"BATCHYARD_{key}"] for key in place} == place


def test_an_s3_elsewhere_without_an_address_is_refused() -> None:
    elsewhere = compose.load(compose.S3_FILE.read_text())

    with pytest.raises(compose.MissingVariableError, match="S3_ENDPOINT"):
        compose.interpolated(elsewhere, compose_variables())


def test_the_catalog_is_that_of_kubernetes(fleet: Compose) -> None:
    services = compose.interpolated(fleet, compose_variables())["services"]

    mounted = {
        volume
        for name in ("gateway", "dispatcher", "ray-head", "worker")
        for volume in services[name]["volumes"]
        if "catalog" in volume
    }
    assert mounted == {"./k8s/base/catalog.yaml:/etc/batchyard/catalog.yaml:ro"}
    assert load_catalog(MANIFESTS / "base/catalog.yaml").models


def test_images_are_the_same_as_on_kubernetes(fleet: Compose) -> None:
    [kustomization] = read((MANIFESTS / "base/kustomization.yaml").read_text())
    there = {f"{image['name']}:{image['newTag']}" for image in kustomization["images"]}
    gpu = compose.load(compose.GPU_FILE.read_text())
    variables = compose_variables()

    ours = {
        service["image"]
        for file in (compose.interpolated(fleet, variables), compose.interpolated(gpu, variables))
        for service in file["services"].values()
        if service["image"].startswith("batchyard/")
    }
    assert ours == there


def test_the_gpus_are_given_to_the_worker_alone() -> None:
    services = compose.load(compose.GPU_FILE.read_text())["services"]

    assert list(services) == ["worker"]
    assert (ROOT / services["worker"]["build"]["dockerfile"]).is_file()


def _wrong_names(fleet: Compose) -> list[str]:
    ours = {
        name: service
        for name, service in fleet["services"].items()
        if service["image"].partition(":")[0] in READERS
    }
    assert len(ours) == 4
    return [
        f"{name}: {wrong}"
        for name, service in ours.items()
        for wrong in wrong_names(service["image"], set(service["environment"]))
    ]


def _schema_problem(document: Any) -> str:
    if not compose.SCHEMA.is_file():
        pytest.skip(f"no schema at {compose.SCHEMA}")
    validator = Draft7Validator(json.loads(compose.SCHEMA.read_text()))
    return "\n".join(_words(error) for error in validator.iter_errors(document))


def _words(error: Any) -> str:
    deeper = " ".join(map(_words, error.context or ()))
    return f"{'.'.join(map(str, error.path))}: {error.message[-300:]} {deeper}"
