"""Each document against the strict schema of its kind."""

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import kubernetes_validate
import yaml
from jsonschema import Draft7Validator

from tests.k8s.pods import title
from tests.k8s.rendering import SCHEMAS, Document

#: The oldest version that the manifests are for.
KUBERNETES = "1.31"
CRDS = SCHEMAS / "k8s-schemas"


def problems(document: Document) -> Iterator[str]:
    """Why the API server would refuse the document; one of a custom kind needs its schema."""
    group = document["apiVersion"].rpartition("/")[0]
    if is_core(group):
        try:
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"{title(document)}: {'.'.join(map(str, error.path))}: {error.message[:200]}"
        except kubernetes_validate.SchemaNotFoundError as error:
            yield f"{title(document)}: {error.message}"
        return
    validator = _validator(group, document["apiVersion"].rpartition("/")[2], document["kind"])
    if validator is None:
        yield f"{title(document)}: there is no kind of this name and version"
        return
    for found in validator.iter_errors(document):
        yield f"{title(document)}: {'.'.join(map(str, found.path))}: {found.message[:200]}"


def is_core(group: str) -> bool:
    return "." not in group or group.endswith(".k8s.io")


@cache
def _validator(group: str, version: str, kind: str) -> Draft7Validator | None:
    flat = CRDS / group / f"{kind.lower()}_{version}.json"
    if flat.exists():
        schema: dict[str, Any] = json.loads(flat.read_text())
    else:
        definition = CRDS / group / f"{group}_{kind.lower()}s.yaml"
        if not definition.exists():
            return None
        crd = yaml.load(definition.read_text(), yaml.CSafeLoader)  # a safe loader
        served = [one for one in crd["spec"]["versions"] if one["name"] == version]
        if not served or crd["spec"]["names"]["kind"] != kind:
            return None
        schema = _closed(served[0]["schema"]["openAPIV3Schema"])
    # The API server knows it, and the definitions leave it open.
    schema["properties"]["metadata"] = {"type": "object"}
    return Draft7Validator(schema)


def _closed(schema: Any) -> Any:
    """A structural schema as JSON schema, with unknown fields refused."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    if closed.pop("x-kubernetes-int-or-string", False):
        closed.pop("type", None)
        closed["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    is_open = closed.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in closed
    if closed.get("type") == "object" and "properties" in closed and not is_open:
        closed["additionalProperties"] = False
    if closed.pop("nullable", False) and isinstance(closed.get("type"), str):
        closed["type"] = [closed["type"], "null"]
    return closed
