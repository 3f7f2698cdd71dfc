import json
from typing import Any

import pytest

from gateway.ui.row_texts import result_row

CHAT = {"choices": [{"message": {"role": "assistant", "content": "Blue."}}]}


def answered(body: dict[str, Any], *, status: int = 200) -> bytes:
    response = {"status_code": status, "body": body}
    return json.dumps({"custom_id": "a", "response": response, "error": None}).encode()


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (CHAT, "Blue."),
        ({"choices": [{"text": "one"}, {"text": "two"}]}, "one\n\ntwo"),
        ({"output": [{"content": [{"type": "output_text", "text": "said"}]}]}, "said"),
        ({"data": [{"embedding": [0.1, 0.2, 0.3]}]}, "1 vectors of 3 numbers"),
        ({"choices": [{"message": {"tool_calls": [{"id": "x"}]}}]}, '[{"id": "x"}]'),
    ],
)
def test_an_answer_of_each_endpoint_is_text(body: dict[str, Any], text: str) -> None:
    row = result_row(3, answered(body), None)

    assert (row.line, row.custom_id, row.answer, row.is_failed) == (3, "a", text, False)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            {"messages": [{"content": "Hi"}, {"content": [{"type": "text", "text": "Why?"}]}]},
            "Why?",
        ),
        ({"prompt": "Once"}, "Once"),
        ({"input": ["a", "b"]}, "a\nb"),
        ({"messages": [{"content": [{"type": "image_url", "image_url": {}}]}]}, "[image_url]"),
        ({}, ""),
    ],
)
def test_what_was_asked_is_the_last_thing_said(body: dict[str, Any], text: str) -> None:
    assert result_row(1, answered(CHAT), json.dumps({"body": body}).encode()).prompt == text


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "7",
        "{}",
        '{"body": null}',
        '{"body": "Hi"}',
        '{"body": {"messages": "Hi"}}',
        '{"body": {"messages": ["Hi"]}}',
        '{"body": {"messages": {"role": "user"}}}',
        '{"body": {"messages": [{"role": "user"}]}}',
        '{"body": {"input": 7}}',
        '{"body": ' + "[" * 100_000,
    ],
)
def test_a_line_that_asks_for_nothing_that_can_be_read_is_shown_without_a_prompt(line: str) -> None:
    assert result_row(1, answered(CHAT), line.encode()).prompt == ""


def test_a_failure_says_why() -> None:
    refused = answered({"error": {"message": "Too long.", "code": None}}, status=400)
    never = json.dumps(
        {"custom_id": "a", "response": None, "error": {"code": "cancelled", "message": "Not run."}}
    ).encode()

    assert result_row(1, refused, None).answer == "Too long. (HTTP 400)"
    assert result_row(1, never, None).answer == "Not run. (cancelled)"
    assert result_row(1, never, None).is_failed


def test_a_request_that_is_no_json_is_shown_without_a_prompt() -> None:
    assert result_row(1, answered(CHAT), b"nonsense").prompt == ""
