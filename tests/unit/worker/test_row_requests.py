import json
from typing import Any

import pytest

from shared.openai.row_limits import RowLimits
from shared.openai.row_rules import DEFAULT_RULES, RowRules
from shared.slices import SliceUsage
from worker.row_requests import Request, RowAnswer, answer_of, request_of

_CHAT = "/v1/chat/completions"


def _line(**changes: Any) -> bytes:
    return json.dumps({"custom_id": "a", "url": _CHAT, "body": {"model": "m"}, **changes}).encode()


def test_a_request_has_its_limits_lowered_and_only_a_header_that_may_be_one() -> None:
    rules = RowRules(limits=RowLimits(max_tokens=8))

    assert request_of(_line(request_id="r-1"), rules) == Request(
        _CHAT, {"model": "m", "max_completion_tokens": 8}, "r-1"
    )
    assert request_of(_line(request_id="r\n"), DEFAULT_RULES) == Request(
        _CHAT, {"model": "m"}, None
    )


def test_a_request_has_what_openai_lets_it_leave_out() -> None:
    image = {"type": "input_image", "image_url": "data:,"}
    body = {"model": "m", "input": [{"role": "user", "content": [image]}]}

    found = request_of(_line(url="/v1/responses", body=body), DEFAULT_RULES)

    assert isinstance(found, Request)
    assert found.body["input"][0]["content"] == [{**image, "detail": "auto"}]


@pytest.mark.parametrize(
    ("line", "status", "param"),
    [
        (b"[]", 400, None),
        (b"{", 400, None),
        (b"[" * 100_000, 400, None),
        (_line(url="/v1/load_lora_adapter"), 404, "url"),
        (_line(url=[_CHAT]), 404, "url"),
        (_line(body={"model": "m", "stream": True}), 400, "body.stream"),
        (_line(body={"model": "m", "n": 1_000}), 400, "n"),
    ],
)
def test_a_line_that_may_not_run_has_its_result_at_once(
    line: bytes, status: int, param: str | None
) -> None:
    found = request_of(line, DEFAULT_RULES)

    assert not isinstance(found, Request)
    assert found[0] == status
    assert json.loads(found[1])["error"]["param"] == param


def test_an_answer_that_is_too_large_is_none_and_its_tokens_count() -> None:
    rules = RowRules(limits=RowLimits(result_bytes=1024))
    usage = {"prompt_tokens": 3, "completion_tokens": 4}
    body = json.dumps({"text": "a" * 1024, "usage": usage}).encode()

    status, error, tokens = answer_of(Request(_CHAT, {}, None), (200, body), rules)

    assert (status, json.loads(error)["error"]["code"]) == (400, "result_too_large")
    assert tokens == SliceUsage(1, 0, 3, 0, 4, 0)


def test_an_error_has_no_tokens() -> None:
    failed = (404, b'{"error":{"message":"no such model"}}')

    assert answer_of(Request(_CHAT, {}, None), failed, DEFAULT_RULES) == RowAnswer(*failed)
