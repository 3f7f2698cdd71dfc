import json
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.input.beginnings import BLOCK_TOKENS, Beginning, beginning

CHAT = "/v1/chat/completions"
#: About 1,000 tokens.
RULES = "Answer with one word. " * 190


def line(url: str = CHAT, **body: Any) -> bytes:
    return json.dumps({"custom_id": "a", "method": "POST", "url": url, "body": body}).encode()


def chat(*messages: tuple[str, str], **fields: Any) -> bytes:
    return line(messages=[{"role": role, "content": text} for role, text in messages], **fields)


def common(one: bytes, other: bytes) -> int:
    """How many blocks both begin with."""
    count = 0
    for mine, theirs in zip(beginning(one).prefix, beginning(other).prefix, strict=False):
        if mine != theirs:
            break
        count += 1
    return count


def test_a_prefix_of_a_thousand_tokens_is_recognised() -> None:
    one, other = (chat(("system", RULES), ("user", text)) for text in ("cats " * 99, "dogs " * 99))

    assert common(one, other) * BLOCK_TOKENS >= 900
    assert common(one, other) < len(beginning(one).prefix)


def test_what_differs_from_the_start_has_nothing_in_common() -> None:
    assert common(chat(("user", "a" + RULES)), chat(("user", "b" + RULES))) == 0


def test_prompts_of_two_salts_have_nothing_in_common() -> None:
    salted = (chat(("system", RULES), cache_salt=salt) for salt in ("a", "b"))

    assert common(*salted) == 0


@pytest.mark.parametrize(
    ("url", "field"), [("/v1/completions", "prompt"), ("/v1/responses", "input")]
)
def test_other_prompts_are_read_too(url: str, field: str) -> None:
    one, other = (line(url, **{field: RULES + end}) for end in ("cats " * 99, "dogs " * 99))

    assert common(one, other) * BLOCK_TOKENS >= 900


def test_parts_of_a_content_are_read_as_one_text() -> None:
    parts = [{"type": "text", "text": RULES}, {"type": "text", "text": "dogs"}]
    one = line(messages=[{"role": "user", "content": parts}])

    assert common(one, chat(("user", RULES))) * BLOCK_TOKENS >= 900


def test_a_short_prompt_has_no_blocks() -> None:
    assert beginning(chat(("user", "Hello"))).prefix == ()


def test_embeddings_have_no_cache() -> None:
    assert beginning(line("/v1/embeddings", input=RULES)) == Beginning()


def test_requests_with_the_same_instructions_are_of_one_kind() -> None:
    one, other = (chat(("system", "Summarise."), ("user", text)) for text in ("cats", "dogs"))
    third = chat(("system", "Translate."), ("user", "cats"))

    assert beginning(one).kind == beginning(other).kind != beginning(third).kind


@pytest.mark.parametrize(
    "changed",
    [{"max_tokens": 9}, {"response_format": {"type": "json_object"}}, {"tools": []}],
    ids=lambda changed: next(iter(changed)),
)
def test_the_form_and_the_limit_of_an_answer_are_of_the_kind(changed: dict[str, Any]) -> None:
    plain, other = chat(("user", "cats")), chat(("user", "cats"), **changed)

    assert beginning(plain).kind == 0 != beginning(other).kind


@pytest.mark.parametrize(
    ("url", "fields", "limit"),
    [
        (CHAT, {}, None),
        (CHAT, {"max_tokens": 9}, 9),
        (CHAT, {"max_tokens": 9, "max_completion_tokens": 7}, 7),
        (CHAT, {"max_tokens": None}, None),
        (CHAT, {"max_tokens": "9"}, None),
        (CHAT, {"max_tokens": 10**4000}, None),
        ("/v1/completions", {}, 16),
        ("/v1/responses", {"max_output_tokens": 3, "max_tokens": 9}, 3),
    ],
    ids=lambda given: f"{given}"[:60],
)
def test_a_request_tells_how_long_its_answer_may_be(
    url: str, fields: dict[str, Any], limit: int | None
) -> None:
    assert beginning(line(url, **fields)).limit == limit


def test_another_process_finds_the_same() -> None:
    program = "import sys; from shared.input.beginnings import beginning; \
print(beginning(sys.stdin.buffer.read()))"
    request = chat(("system", RULES), ("user", "cats"))

    found = subprocess.run(
        [sys.executable, "-c", program], input=request, capture_output=True, check=True
    )

    assert found.stdout.decode().strip() == str(beginning(request))


_JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(body=st.dictionaries(st.sampled_from(("messages", "input", "tools", "prompt")), _JSON))
def test_no_body_breaks_it(body: dict[str, Any]) -> None:
    beginning(line(**body))


@given(raw=st.binary())
def test_no_line_breaks_it(raw: bytes) -> None:
    beginning(raw)
