import json
from typing import Any

import pytest

from worker.grammars import Grammar, grammars, may_have_grammars

_SCHEMA = {"type": "object"}
_TEXT = json.dumps(_SCHEMA)


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ({}, []),
        ({"response_format": {"type": "json_object"}}, []),
        ({"response_format": "json", "tools": 5, "text": [], "structured_outputs": []}, []),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": _SCHEMA}}},
            [("response_format", "json", _TEXT)],
        ),
        (
            {"text": {"format": {"type": "json_schema", "name": "a", "schema": _SCHEMA}}},
            [("text", "json", _TEXT)],
        ),
        ({"structured_outputs": {"json": _SCHEMA}}, [("structured_outputs", "json", _TEXT)]),
        ({"structured_outputs": {"json": _TEXT}}, [("structured_outputs", "json", _TEXT)]),
        ({"structured_outputs": {"regex": "a+"}}, [("structured_outputs", "regex", "a+")]),
        (
            {"structured_outputs": {"grammar": 'root ::= "a"'}},
            [("structured_outputs", "ebnf", 'root ::= "a"')],
        ),
        (
            {"structured_outputs": {"choice": ["a", '"']}},
            [("structured_outputs", "ebnf", r'root ::= "a" | "\""')],
        ),
        (
            {"structured_outputs": {"structural_tag": "{}"}},
            [("structured_outputs", "structural_tag", "{}")],
        ),
        (
            {"tools": [{"function": {"name": "f", "parameters": _SCHEMA}}, {"function": {}}, 5]},
            [("tools", "json", _TEXT)],
        ),
        (
            {"tools": [{"type": "function", "name": "f", "parameters": _SCHEMA}]},
            [("tools", "json", _TEXT)],
        ),
        ({"tools": [{"name": "f", "input_schema": _SCHEMA}]}, [("tools", "json", _TEXT)]),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": _SCHEMA}}},
            [("output_config", "json", _TEXT)],
        ),
    ],
)
def test_all_that_the_engine_compiles_is_found(
    body: dict[str, Any], wanted: list[tuple[str, str, str]]
) -> None:
    assert [tuple(grammar) for grammar in grammars(body)] == wanted
    assert may_have_grammars(json.dumps({"body": body}).encode()) or not wanted


@pytest.mark.parametrize(
    ("line", "may_have"),
    [
        (b'{"body": {"messages": [{"content": "a text with tools"}]}}', False),
        (b'{"body": {"tools": []}}', True),
        # A client may write any character of a name so.
        (b'{"body": {"\\u0074ools": []}}', True),
    ],
)
def test_a_line_is_looked_at_for_what_the_engine_compiles(line: bytes, may_have: bool) -> None:
    assert may_have_grammars(line) is may_have


def test_functions_are_also_one_schema_as_vllm_compiles_those_that_have_to_be_called() -> None:
    first = {"type": "object", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {}}}
    inside = {"type": "namespace", "tools": [{"name": "g", "parameters": _SCHEMA}]}

    found = [
        json.loads(grammar.text)
        for grammar in grammars(
            {"tools": [{"function": {"name": "f", "parameters": first}}, inside]}
        )
    ]

    assert found[:2] == [first, _SCHEMA]
    assert found[2]["$defs"] == {"a": {}}
    calls = [call["properties"] for call in found[2]["items"]["anyOf"]]
    assert [call["name"]["enum"] for call in calls] == [["f"], ["g"]]
    assert calls[0]["parameters"] == {"type": "object", "properties": first["properties"]}


def test_grammars_that_are_read_alike_have_one_digest() -> None:
    assert Grammar("tools", "json", "{}").digest == Grammar("text", "json", "{}").digest
    assert Grammar("tools", "json", "{}").digest != Grammar("tools", "ebnf", "{}").digest
