from typing import Any

import pytest

from shared.input.validation import InputCheck
from shared.openai.endpoints import ENDPOINTS
from shared.openai.ignored_fields import IGNORED
from shared.openai.row_rules import RowRules
from tests.bodies import CHAT, COMPLETIONS, GOOD, RESPONSES
from tests.unit.shared.input.test_validation import line

_SCHEMA = {"name": "s", "schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("path", "change", "names"),
    [
        (CHAT, {"web_search_options": {"search_context_size": "low"}}, ["web_search_options"]),
        (CHAT, {"modalities": ["text", "audio"], "audio": {"voice": "x"}}, ["modalities", "audio"]),
        (CHAT, {"modalities": ["text"], "verbosity": "medium", "audio": None}, []),
        (CHAT, {"user": "x", "metadata": {"a": "b"}, "store": True}, []),
        (
            CHAT,
            {"response_format": {"type": "json_object", "schema": {"type": "object"}}},
            ["response_format.schema"],
        ),
        (
            CHAT,
            {"response_format": {"type": "json_schema", "json_schema": {**_SCHEMA, "mode": "x"}}},
            ["response_format.json_schema.mode"],
        ),
        (CHAT, {"response_format": {"type": "json_schema", "json_schema": _SCHEMA}}, []),
        (CHAT, {"response_format": {"type": "structural_tag", "format": {"type": "x"}}}, []),
        (COMPLETIONS, {"best_of": 4}, ["best_of"]),
        (COMPLETIONS, {"best_of": 1}, []),
        (RESPONSES, {"conversation": "conv_1"}, ["conversation"]),
        (RESPONSES, {"background": False}, []),
        # Templates may use them.
        (CHAT, {"documents": []}, []),
        (CHAT, {"documents": [{"text": "x"}]}, []),
        (CHAT, {"made_up": 1, "vllm_xargs": {"a": 1}}, ["made_up"]),
    ],
)
def test_what_the_engine_does_not_look_at_is_named(
    path: str, change: dict[str, Any], names: list[str]
) -> None:
    rules = RowRules(extra_fields=frozenset({"made_up", "vllm_xargs"}))
    body = {**GOOD[path], **change}

    assert rules.refusal(path, body) is None
    assert list(rules.ignored(path, body)) == names


def test_no_such_field_is_one_that_ours_check() -> None:
    for endpoint in ENDPOINTS.values():
        assert not IGNORED.keys() & endpoint.body.model_fields.keys(), endpoint.path


def test_an_input_tells_each_field_once_with_its_requests_and_their_first_line() -> None:
    """Among lines that are looked at together, and alone."""
    plain: dict[str, Any] = {"model": "m", "messages": []}
    vain = {**plain, "prediction": {"type": "content", "content": "x"}}
    inert = {**plain, "response_format": {"type": "json_object", "schema": {}, "x": 1}}
    bodies = [plain] * 70 + [vain, plain, vain, inert, {**vain, "no_such_field": 1}]
    check = InputCheck(CHAT, {"m": frozenset({CHAT})})

    for number, body in enumerate(bodies):
        check.feed(line(f"{number}", body=body) + b"\n")

    assert check.refused == 1
    assert [(one.code, one.message[:20]) for one in check.warnings] == [
        ("ignored_field", "'prediction' has no "),
        ("ignored_field", "'response_format.x' "),
    ]
    assert check.warnings[0].message.endswith("Requests that have it: 2. The first is in line 71.")
    assert [(one.code, one.message[:53]) for one in check.refusals] == [
        ("refused_request", "Requests that get an error for 'no_such_field': 1. Th"),
    ]
