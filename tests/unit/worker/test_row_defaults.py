import copy
from typing import Any

import pytest

from worker.row_defaults import with_defaults

_RESPONSES = "/v1/responses"
_IMAGE = {"type": "input_image", "image_url": "data:,"}
_TEXT = {"type": "input_text", "text": "What is it?"}
_SAID = {"type": "output_text", "text": "A train."}


def test_an_image_has_the_detail_that_openai_gives_it() -> None:
    detailed = {**_IMAGE, "detail": "low"}
    body = {"input": [{"role": "user", "content": [_TEXT, _IMAGE, detailed]}], "top_p": 1}
    before = copy.deepcopy(body)

    assert with_defaults(_RESPONSES, body) == {
        "input": [{"role": "user", "content": [_TEXT, {**_IMAGE, "detail": "auto"}, detailed]}],
        "top_p": 1,
    }
    # The row may be asked again, and its body is what it was.
    assert body == before


def test_what_the_assistant_has_said_in_parts_is_a_message() -> None:
    asked, said = {"role": "user", "content": "hi"}, {"role": "assistant", "content": [_SAID]}

    assert with_defaults(_RESPONSES, {"input": [asked, said]}) == {
        "input": [asked, {**said, "type": "message"}]
    }


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (_RESPONSES, {}),
        (_RESPONSES, {"input": "hi"}),
        (_RESPONSES, {"input": [5, {"content": "hi"}, {"content": [5, [_IMAGE]]}]}),
        (_RESPONSES, {"input": [{"role": "assistant", "content": "A train."}]}),
        (_RESPONSES, {"input": [{"role": "assistant", "type": "message", "content": [_SAID]}]}),
        (_RESPONSES, {"input": [{"role": "user", "content": [{**_IMAGE, "detail": None}]}]}),
        ("/v1/chat/completions", {"input": [{"role": "user", "content": [_IMAGE]}]}),
    ],
)
def test_any_other_body_stays_as_it_is(path: str, body: Any) -> None:
    assert with_defaults(path, body) is body
