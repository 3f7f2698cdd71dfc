import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.input.plain_lines import PLAIN_PATHS, plain_decoder
from shared.openai.bodies import Refusal, read_body
from shared.openai.endpoints import ENDPOINTS
from shared.openai.row_rules import DEFAULT_RULES
from tests.bodies import CHAT, CLOSED, GOOD, WRONG, made_up


def _line(path: str, body: dict[str, Any]) -> bytes:
    return json.dumps({"custom_id": "a", "method": "POST", "url": path, "body": body}).encode()


def _is_plain(path: str, body: dict[str, Any]) -> bool:
    try:
        line = plain_decoder(path, "m", 512).decode(_line(path, body))
    except msgspec.DecodeError:
        return False
    # `InputCheck` looks at it.
    return line.body.stream is not True


@pytest.mark.parametrize("path", sorted(PLAIN_PATHS))
@given(data=st.data())
def test_a_plain_line_is_one_that_the_engine_takes(path: str, data: st.DataObject) -> None:
    model = ENDPOINTS[path].body
    body = data.draw(made_up(path, frozenset(model.model_fields)))

    if _is_plain(path, body):
        assert not isinstance(read_body(model, body), Refusal)
        assert DEFAULT_RULES.refusal(path, body) is None


@pytest.mark.parametrize("path", sorted(PLAIN_PATHS))
def test_a_body_without_frills_is_plain(path: str) -> None:
    assert _is_plain(path, GOOD[path])


def test_what_most_requests_of_a_batch_say_is_plain() -> None:
    schema = {"name": "answer", "strict": True, "schema": {"type": "object", "properties": {}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    common = {
        "max_completion_tokens": 100,
        "temperature": 0,
        "top_p": 1,
        "n": 1,
        "seed": 7,
        "stop": ["\n"],
        "stream": False,
        "user": "clerk",
        "tools": [tool],
        "response_format": {"type": "json_schema", "json_schema": schema},
        "metadata": {"ticket": "17"},
        "ignore_eos": True,
    }

    assert _is_plain(CHAT, {**GOOD[CHAT], **common})


@pytest.mark.parametrize(
    ("path", "change", "param"), [case for case in (*WRONG, *CLOSED) if case[0] in PLAIN_PATHS]
)
def test_a_wrong_line_is_not_plain(path: str, change: dict[str, Any], param: str) -> None:
    assert not _is_plain(path, {**GOOD[path], **change})
