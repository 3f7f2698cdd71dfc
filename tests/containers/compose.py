"""compose.yaml as Compose runs it, and the rules that its schema does not check."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.k8s.rendering import ROOT, SCHEMAS, read

FILE = ROOT / "compose.yaml"
GPU_FILE = ROOT / "compose.gpu.yaml"
S3_FILE = ROOT / "compose.s3.yaml"
MONITORING_FILE = ROOT / "compose.monitoring.yaml"
SCHEMA = SCHEMAS / "compose-schema" / "compose-spec.json"

Compose = dict[str, Any]
_VARIABLE = re.compile(r"\$(?:\$|\{(\w+)(?::([-?])([^}]*))?\})")
_SECRET_WORDS = re.compile(r"TOKEN|PASSWORD|SECRET|_KEY$|AMQP_URL|REDIS_URL|DEFINITIONS|ROOT_USER")
#: Optional: without it, only models that ask for no licence can be had.
_MAY_BE_EMPTY = {"HF_TOKEN"}


class MissingVariableError(Exception):
    """A variable that must be set is not."""


def load(text: str) -> Compose:
    """The file with its variables as they stand."""
    [document] = read(text)
    return document


def merged(compose: Compose, other: Compose) -> Compose:
    """Both files as one, for the fields that ours use."""
    services = {**compose["services"]}
    for name, service in other["services"].items():
        before = services[name]
        services[name] = {
            **before,
            **service,
            **{
                field: {**before[field], **service[field]}
                for field in ("environment", "healthcheck")
                if field in service
            },
        }
    return {**compose, "services": services}


def interpolated(value: Any, variables: Mapping[str, str]) -> Any:
    """With the variables put in, as compose does it. Raises MissingVariableError."""
    if isinstance(value, dict):
        return {key: interpolated(item, variables) for key, item in value.items()}
    if isinstance(value, list):
        return [interpolated(item, variables) for item in value]
    return _VARIABLE.sub(_put(variables), value) if isinstance(value, str) else value


def required(text: str) -> set[str]:
    """The variables without which compose refuses to start."""
    return {name for name, kind, _ in _VARIABLE.findall(text) if kind == "?"}


def problems(compose: Compose) -> Iterator[str]:
    """Of the file with its variables as they stand."""
    for key in compose:
        if key in ("name", "version"):
            yield f"the top level has a {key}, which old or new versions refuse"
    for name, service in compose["services"].items():
        yield from _service(name, service, compose)


def _service(name: str, service: dict[str, Any], compose: Compose) -> Iterator[str]:
    image = _VARIABLE.sub(lambda found: found[3] or "", service["image"])
    if not re.search(r":[^/]*\d", image):
        yield f"{name}: {image} is not pinned"
    if "test" not in service.get("healthcheck", {}):
        yield f"{name}: nobody knows whether it is well"
    if service.get("restart") != "unless-stopped":
        yield f"{name}: not started again"
    yield from _bounded(name, service)
    yield from _volumes(name, service, compose)
    yield from _closed(name, service)
    if "shm_size" in service and not 0 < _object_store(service) < _bytes(service["shm_size"]):
        yield f"{name}: Ray's object store does not fit into /dev/shm"
    for other, how in service.get("depends_on", {}).items():
        if other not in compose["services"]:
            yield f"{name}: there is no {other}"
        if how.get("condition") != "service_healthy":
            yield f"{name}: begins before {other} is well"
    yield from _secrets(name, service)
    if "build" in service and not (ROOT / service["build"]["dockerfile"]).is_file():
        yield f"{name}: there is no {service['build']['dockerfile']}"


def _bounded(name: str, service: dict[str, Any]) -> Iterator[str]:
    if not re.fullmatch(r"(\$\{\w+:-)?\d+[mg]\}?", str(service.get("mem_limit", ""))):
        yield f"{name}: its memory is not limited"
    if not {"max-size", "max-file"} <= service.get("logging", {}).get("options", {}).keys():
        yield f"{name}: its log grows for ever"


def _object_store(service: dict[str, Any]) -> int:
    """The bytes that Ray is given; 0 if it guesses."""
    found = re.search(r"--object-store-memory=(\d+)", " ".join(service["command"]))
    return int(found[1]) if found else 0


def _bytes(size: str) -> int:
    return int(size.removesuffix("gb")) * 1024**3


def _secrets(name: str, service: dict[str, Any]) -> Iterator[str]:
    for variable, value in service.get("environment", {}).items():
        if _SECRET_WORDS.search(variable) and variable not in _MAY_BE_EMPTY:
            found = _VARIABLE.fullmatch(str(value))
            if found is None or found[2] != "?":
                yield f"{name}: {variable} has a default"


def _volumes(name: str, service: dict[str, Any], compose: Compose) -> Iterator[str]:
    for volume in service.get("volumes", []):
        plain = _VARIABLE.sub(lambda found: found[3] or "", volume)
        source, _, rest = plain.partition(":")
        if source.startswith("."):
            if not (ROOT / source).is_file():
                yield f"{name}: there is no {source}"
            if not rest.endswith(":ro"):
                yield f"{name}: {source} can be written"
        elif source not in compose["volumes"]:
            yield f"{name}: {source} is no named volume"


def _closed(name: str, service: dict[str, Any]) -> Iterator[str]:
    for port in service.get("ports", []):
        if not str(port).startswith("127.0.0.1:"):
            yield f"{name}: {port} is open to the network"
    for door in ("privileged", "network_mode", "pid", "cap_add", "devices"):
        if door in service:
            yield f"{name}: {door}"
    if service.get("cap_drop") != ["ALL"]:
        yield f"{name}: keeps capabilities"
    if "no-new-privileges:true" not in service.get("security_opt", []):
        yield f"{name}: may gain privileges"
    for place in service.get("tmpfs", []):
        # At its second start a container has the folder, of root's, and Docker takes after it.
        if not place.startswith("/tmp") and "uid=" not in place:
            yield f"{name}: {place} is root's from the second start on"
    # A server of somebody else's choice may write where it likes.
    if name != "s3" and service.get("read_only") is not True:
        yield f"{name}: its root can be written"


def _put(variables: Mapping[str, str]) -> Callable[[re.Match[str]], str]:
    def put(found: re.Match[str]) -> str:
        name, kind, text = found.groups()
        if name is None:
            return "$"
        if variables.get(name):
            return variables[name]
        if kind == "?":
            raise MissingVariableError(f"{name}: {text}")
        return text or ""

    return put
