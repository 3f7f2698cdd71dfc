"""docs/asyncapi.yaml and docs/schemas against the code, and their examples against them.

That the document is AsyncAPI by its official schema is held by `tests/contract/test_asyncapi.py`.
"""

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import jsonschema
import pytest
import yaml

from shared.bus import asyncapi, live_messages, messages, open_messages, replays, topology
from shared.bus.event_shapes import EVENT_TYPES, PIPELINE_EVENT_TYPES
from shared.ledger.pipelines import Ending
from shared.lifecycle import TRANSITIONS
from shared.openai import webhooks

_ROOT = Path(__file__).parents[2]
_DOCS = _ROOT / "docs"
_SCRIPTS = sorted((_ROOT / "shared/state/lua").rglob("*.lua"))
_NAMES = sorted(path.stem for path in (_DOCS / "schemas").glob("*.json"))


def test_the_documents_are_what_the_code_says() -> None:
    written = {name: (_DOCS / name).read_text() for name in _written()}

    assert written == asyncapi.files(), "run python -m shared.bus.asyncapi"


@pytest.mark.parametrize("name", _NAMES)
def test_every_example_is_valid(name: str) -> None:
    message = _document()["components"]["messages"][name]
    alone = json.loads((_DOCS / f"schemas/{name}.json").read_text())
    within = {**_document(), **message["payload"]}

    for schema in (alone, within):
        validator = jsonschema.Draft202012Validator(
            schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
        )
        wrong = [
            f"{example['name']}: {error.json_path} {error.message}"
            for example in message["examples"]
            for error in validator.iter_errors(example["payload"])
        ]
        assert wrong == []
    assert message["examples"]


@pytest.mark.parametrize("name", _NAMES)
def test_every_schema_refuses_something_else(name: str) -> None:
    schema = json.loads((_DOCS / f"schemas/{name}.json").read_text())
    other = "batch.submit.v1" if name != "batch.submit.v1" else "batch.completed"
    foreign = _document()["components"]["messages"][other]["examples"][0]["payload"]

    jsonschema.Draft202012Validator.check_schema(schema)
    assert not jsonschema.Draft202012Validator(schema).is_valid(foreign)


def test_every_reference_leads_somewhere() -> None:
    document = _document()
    found = set(_references(document))

    lost = []
    for reference in found:
        place: Any = document
        for step in reference.removeprefix("#/").split("/"):
            place = place.get(step) if isinstance(place, dict) else None
        if place is None:
            lost.append(reference)

    assert (lost, bool(found)) == ([], True)


def test_every_event_that_a_script_announces_is_described_and_no_other() -> None:
    announced = {f"batch.{row.target}" for row in TRANSITIONS.values()}
    for script in _SCRIPTS:
        announced |= set(re.findall(r"'((?:batch|slice|request)\.[a-z_]+)'", script.read_text()))

    assert announced == set(EVENT_TYPES)


def test_every_end_of_a_pipeline_is_described_and_no_other() -> None:
    assert {f"pipeline.{ending}" for ending in get_args(Ending)} == set(PIPELINE_EVENT_TYPES)
    assert tuple(PIPELINE_EVENT_TYPES) == webhooks.PIPELINE_EVENT_TYPES


def test_every_message_that_a_tenant_may_send_is_described() -> None:
    types = {
        value
        for module in (messages, open_messages, replays, live_messages)
        for value in vars(module).values()
        if isinstance(value, str) and re.fullmatch(r"(batch|live)\.\w+\.v\d+", value)
    }

    described = {message.name for message in asyncapi.all_messages() if message.kind == "received"}
    assert described == types - {
        messages.READY,
        messages.REPLY,
        replays.REPLAYED,
        live_messages.REPLY,
    }


def test_the_channels_are_those_of_the_broker() -> None:
    channels = _document()["channels"]

    assert channels["submit"]["address"] == topology.submit_key("{tenant}")
    assert channels["events"]["address"] == topology.event_key("{type}", "{tenant}", "{batchId}")
    ends = topology.event_key("{type}", "{tenant}", "{pipelineId}")
    assert channels["pipelineEvents"]["address"] == ends
    used = {
        channel["bindings"]["amqp"]["exchange"]["name"]: channel["bindings"]["amqp"]["exchange"]
        for channel in channels.values()
        if channel["bindings"]["amqp"]["is"] == "routingKey"
    }
    assert {name: exchange["type"] for name, exchange in used.items()} == {
        name: topology.EXCHANGE_TYPES[name]
        for name in (topology.SUBMIT_EXCHANGE, topology.EVENTS_EXCHANGE, topology.LIVE_EXCHANGE)
    }


@cache
def _document() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((_DOCS / "asyncapi.yaml").read_text())
    return document


def _written() -> list[str]:
    return ["asyncapi.yaml", *(f"schemas/{name}.json" for name in _NAMES)]


def _references(node: Any) -> Iterator[str]:
    match node:
        case {"$ref": str(reference)}:
            yield reference
        case dict():
            for value in node.values():
                yield from _references(value)
        case list():
            for value in node:
                yield from _references(value)
        case _:
            pass
