"""The parser accepts what docs/schemas and docs/asyncapi.yaml allow, and refuses the rest."""

import copy
import gzip
import json
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from dispatcher.envelope import Envelope, malformed, unauthorised
from shared.bus import live_messages, messages, open_messages, replays
from shared.bus.live_messages import Asked
from shared.bus.messages import MAX_BYTES_KEYWORD, RejectedError
from shared.bus.received import RECEIVED
from shared.bus.topology import SUBMIT_EXCHANGE, live_key
from shared.openai.endpoints import ENDPOINTS

_DOCS = Path(__file__).parents[2] / "docs"
_TENANT = "acme"
_DIRECT_REPLY = "amq.rabbitmq.reply-to"
_NAMES = sorted([*RECEIVED, live_messages.REQUEST])


def _plain(longest: int) -> st.SearchStrategy[str]:
    """Texts; lone surrogates are none, though JSON can write them."""
    return st.text(st.characters(exclude_categories=["Cs"]), max_size=longest)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 999) | st.floats(-9, 99) | _plain(9),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_plain(5), inner, max_size=2),
    max_leaves=3,
)
#: What a text becomes that is not quite right any more.
_TEXTS = (
    _plain(3)
    | st.sampled_from(["\n", "\x00", " ", "ü" * 600, "x" * 1025, "v" * 1500, "a b", "x" * 129])
    | st.sampled_from(["2026-02-30T00:00:00Z", "2026-12-24 18:00Z", "1795165000", "24H", "."])
)
_quick = settings(
    max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)


@pytest.mark.parametrize("name", _NAMES)
def test_the_parser_takes_every_body_that_its_schema_allows(name: str) -> None:
    @_quick
    @given(_valid(name))
    def check(body: Any) -> None:
        assert _refusal(name, body) is None

    check()


@pytest.mark.parametrize("name", _NAMES)
def test_the_parser_refuses_every_body_that_its_schema_forbids(name: str) -> None:
    @_quick
    @given(_valid(name), st.data())
    def check(body: Any, data: st.DataObject) -> None:
        mutated = _mutated(body, data)
        # As for `_schema`.
        assume(not isinstance(mutated.get("output"), dict))
        refusal = _refusal(name, mutated)

        assert (refusal is None) == _validator(name).is_valid(mutated), refusal

    check()


@pytest.mark.parametrize("name", _NAMES)
@pytest.mark.parametrize("is_mutated", [False, True], ids=["made", "mutated"])
def test_the_properties_are_those_of_the_document(name: str, is_mutated: bool) -> None:
    schema = _properties(name)
    validator = jsonschema.Draft202012Validator(schema)

    @_quick
    @given(_from_schema(schema, schema), st.data())
    def check(made: dict[str, Any], data: st.DataObject) -> None:
        properties = dict(made)
        if is_mutated:
            key = data.draw(st.sampled_from([*schema["properties"]]))
            properties.pop(key, None)
            if key != "delivery_mode":
                properties |= data.draw(st.sampled_from([{}, {key: made.get(key, "") + "x"}]))
                properties |= {key: text} if (text := data.draw(_TEXTS)) else {}
        reasons = _complaints(name, properties)

        assert (not reasons) == validator.is_valid(properties), reasons

    check()


@pytest.mark.parametrize("name", _NAMES)
def test_the_document_allows_direct_reply_as_senders_write_it(name: str) -> None:
    reply_to = _properties(name)["properties"]["reply_to"]

    assert jsonschema.Draft202012Validator(reply_to).is_valid(_DIRECT_REPLY)


def _refusal(name: str, body: Any) -> list[str] | None:
    """Why the service refuses a body; None where it takes it."""
    data = json.dumps(body).encode()
    try:
        match name:
            case messages.SUBMIT:
                submission = messages.decode_submission(data)
                return None if submission.endpoint in ENDPOINTS else ["endpoint"]
            case messages.CANCEL:
                messages.decode_cancellation(data)
            case open_messages.REQUESTS:
                open_messages.decode_requests(data)
            case open_messages.CLOSE:
                open_messages.decode_closing(data)
            case live_messages.REQUEST:
                request = messages.checked(data, live_messages.LiveRequest)
                return None if request.endpoint in ENDPOINTS else ["endpoint"]
            case _:
                replays.decode_replay(data)
    except RejectedError as error:
        return [reason.message for reason in error.reasons]
    return None


def _complaints(name: str, properties: dict[str, Any]) -> list[str]:
    """What the service finds wrong with a message of these properties."""
    sent = dict(properties)
    if sent.get("reply_to") == _DIRECT_REPLY:
        # As the broker does.
        sent["reply_to"] += ".g1h2="
    user = sent.pop("user_id", None) or None
    if name == live_messages.REQUEST:
        asked = Asked(user, live_key(_TENANT), sent, {})
        found = [reason.message for reason in live_messages.malformed(asked)]
    else:
        envelope = Envelope(user, SUBMIT_EXCHANGE, RECEIVED[name].key(_TENANT), sent, {})
        found = [reason.message for reason in (*unauthorised(envelope), *malformed(envelope))]
    encoding = sent.get("content_encoding", "")
    try:
        messages.unpacked(gzip.compress(b"{}") if encoding == "gzip" else b"{}", encoding)
    except RejectedError as error:
        found.append(str(error))
    return found


def _valid(name: str) -> st.SearchStrategy[Any]:
    """Bodies that the schema allows; what is said by no keyword of shape is filtered."""
    return _from_schema(_schema(name), _schema(name)).filter(_validator(name).is_valid)


def _from_schema(schema: Mapping[str, Any], whole: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """What a schema allows, by the keywords that ours use."""
    match schema:
        case {"$ref": reference}:
            return _from_schema(whole["$defs"][reference.rpartition("/")[2]], whole)
        case {"anyOf": choices} | {"oneOf": choices}:
            return st.one_of([_from_schema(choice, whole) for choice in choices])
        case {"const": value}:
            return st.just(value)
        case {"enum": values}:
            return st.sampled_from(values)
        case {"type": kind}:
            return _OF_TYPE[kind](schema, whole)
        case _:
            return _JSON


def _integers(schema: Mapping[str, Any], _: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    whole = st.integers(schema["minimum"], schema["maximum"])
    return whole | whole.map(float)


def _texts(schema: Mapping[str, Any], _: Mapping[str, Any]) -> st.SearchStrategy[str]:
    shortest, longest = schema.get("minLength", 0), schema.get("maxLength", 2000)
    if "pattern" not in schema:
        plain = _plain(min(longest, 20)).filter(lambda text: len(text) >= shortest)
        return plain | st.sampled_from(["x" * longest, "\U0001f600" * longest])
    found = st.from_regex(schema["pattern"], alphabet=st.characters(exclude_categories=["Cs"]))
    return found.filter(lambda text: shortest <= len(text) <= longest)


def _lists(schema: Mapping[str, Any], whole: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    return st.lists(_from_schema(schema["items"], whole), min_size=schema["minItems"], max_size=3)


def _objects(schema: Mapping[str, Any], whole: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    properties = {
        name: _from_schema(one, whole)
        for name, one in schema.get("properties", {}).items()
        if one is not False
    }
    required = {name: properties.pop(name) for name in schema.get("required", ())}
    named = st.fixed_dictionaries(required, optional=properties)
    further = schema.get("additionalProperties", False)
    if further is False:
        return named
    return st.dictionaries(
        _from_schema({"type": "string", **schema.get("propertyNames", {})}, whole),
        _from_schema({} if further is True else further, whole),
        max_size=schema.get("maxProperties", 3),
    )


_OF_TYPE: Mapping[str, Callable[..., st.SearchStrategy[Any]]] = {
    "object": _objects,
    "array": _lists,
    "string": _texts,
    "integer": _integers,
    "boolean": lambda *_: st.booleans(),
    "null": lambda *_: st.none(),
}


def _mutated(body: Any, data: st.DataObject) -> Any:
    """The body with one thing changed somewhere, which may leave it as good as it was."""
    mutated = copy.deepcopy(body)
    holder, key = data.draw(st.sampled_from(list(_places(mutated))))
    old = holder[key]
    choices: list[st.SearchStrategy[Any]] = [_JSON]
    if isinstance(old, int) and not isinstance(old, bool):
        choices += [st.just(float(old)), st.just(old + 0.5), st.sampled_from([-1, 0, 10, 10**9])]
    if isinstance(old, str):
        choices += [_TEXTS, _TEXTS.map(old.__add__), st.just(old.upper())]
    action = data.draw(st.sampled_from(["replace", "replace", "remove", "add"]))
    if action == "replace":
        holder[key] = data.draw(st.one_of(choices))
    elif action == "remove":
        del holder[key]
    elif isinstance(holder, dict):
        holder[data.draw(_plain(4))] = data.draw(_JSON)
    else:
        holder.append(data.draw(_JSON))
    return mutated


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every object or list within, with each key or index."""
    steps = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(steps):
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)


@cache
def _schema(name: str) -> dict[str, Any]:
    schema: dict[str, Any] = _pythonic(json.loads((_DOCS / f"schemas/{name}.json").read_text()))
    if name == messages.SUBMIT:
        # What templates, filters and columns may say is beyond a schema: datasets and tables have
        # tests of their own.
        schema["properties"]["input"]["oneOf"].remove({"$ref": "#/$defs/DatasetInput"})
        schema["properties"]["output"]["anyOf"].remove({"$ref": "#/$defs/Output"})
    return schema


@cache
def _validator(name: str) -> Any:
    checks = jsonschema.Draft202012Validator
    return jsonschema.validators.extend(checks, {MAX_BYTES_KEYWORD: _max_bytes})(
        _schema(name), format_checker=_formats()
    )


def _formats() -> jsonschema.FormatChecker:
    """The one format that we use; the library's own check needs another package."""
    checker = jsonschema.FormatChecker(())
    checker.checks("date-time", raises=ValueError)(_is_moment)
    return checker


def _is_moment(value: object) -> bool:
    return not isinstance(value, str) or datetime.fromisoformat(value).tzinfo is not None


def _max_bytes(_: Any, maximum: int, value: Any, __: Any) -> Iterator[Exception]:
    if isinstance(value, str) and len(value.encode()) > maximum:
        yield jsonschema.ValidationError(f"more than {maximum} bytes")


@cache
def _properties(name: str) -> dict[str, Any]:
    """The AMQP properties of this one tenant."""
    described = _document()["components"]["messages"][name]["x-amqp-properties"]
    text = json.dumps(_pythonic(described)).replace(messages.TENANT.pattern, _TENANT)
    schema: dict[str, Any] = json.loads(text)
    return schema


@cache
def _document() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((_DOCS / "asyncapi.yaml").read_text())
    return document


def _pythonic(schema: Any) -> Any:
    """The schema with its patterns' ends as JSON Schema means them: Python's `$` lets a line feed
    follow."""
    if isinstance(schema, list):
        return [_pythonic(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: re.sub(r"\$(?=$|\|)", r"\\Z", value)
        if key == "pattern" and isinstance(value, str)
        else _pythonic(value)
        for key, value in schema.items()
    }
