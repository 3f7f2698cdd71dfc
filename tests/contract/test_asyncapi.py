"""docs/asyncapi.yaml by AsyncAPI's own JSON schema."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.contract.installing import installed_for_node

_ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def official() -> dict[str, Any]:
    folder = installed_for_node("asyncapi", _ROOT / "locks/asyncapi-node.txt")
    # The one without ids: its references lead to places in itself.
    schema = folder / "node_modules/@asyncapi/specs/schemas/3.0.0-without-$id.json"
    found: dict[str, Any] = json.loads(schema.read_text())
    return found


def test_the_document_is_asyncapi_3(official: dict[str, Any]) -> None:
    document = yaml.safe_load((_ROOT / "docs/asyncapi.yaml").read_text())

    wrong = list(jsonschema.Draft7Validator(official).iter_errors(document))
    assert wrong == []

    document["operations"]["sendEvent"]["action"] = "tell"
    assert not jsonschema.Draft7Validator(official).is_valid(document)
