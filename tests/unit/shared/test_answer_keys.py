import json

import pytest

from shared.answer_keys import (
    BrokenEntryError,
    CachedAnswer,
    answer_digest,
    answer_key,
    to_cached_answer,
)
from shared.answered import answered_line, place_of_body
from shared.input.cached_lines import cached_answer, cached_line

_BATCH = f"batch_{'0' * 32}"
_BODY = b'{"usage": {"x": 1.0}, "text": "\\"body\\": \\u2028"}'


def test_a_key_is_the_same_for_the_same_question_and_no_other() -> None:
    asked = {"model": "m", "messages": [1, 2], "seed": 2**70}
    key = answer_key("secret", "v1", "/v1/embeddings", asked)

    assert answer_key("secret", "v1", "/v1/embeddings", dict(reversed(asked.items()))) == key
    others = [
        answer_key("other", "v1", "/v1/embeddings", asked),
        answer_key("secret", "v2", "/v1/embeddings", asked),
        answer_key("secret", "v1", "/v1/completions", asked),
        answer_key("secret", "v1", "/v1/embeddings", {**asked, "messages": [2, 1]}),
        answer_key("secret", "v1", "/v1/embeddings", {**asked, "seed": 2**70 + 1}),
        answer_key("secret", "v1", "/v1/embeddings", {**asked, "model": 1}),
        answer_key("secret", "v1", "/v1/embeddings", {**asked, "model": "1"}),
    ]
    assert len({key, *others}) == len(others) + 1


def test_an_entry_reads_as_it_was_written() -> None:
    entry = CachedAnswer(1_795_165_000, "file-abc", 7, 7 + len(_BODY), answer_digest(_BODY))

    assert to_cached_answer(entry.to_text()) == entry
    assert entry.fits(_BODY)
    assert not entry.fits(_BODY.swapcase())
    assert not entry.fits(_BODY + b" ")


@pytest.mark.parametrize("text", ["", "a b c d e", "1 file 2 3", "1 file 2 3 x y"])
def test_a_broken_entry_is_told(text: str) -> None:
    with pytest.raises(BrokenEntryError):
        to_cached_answer(text)


@pytest.mark.parametrize("custom_id", ["a", 'x"body":{}', "ü\u2028", None])
def test_the_answer_is_found_in_its_line(custom_id: str | None) -> None:
    line = answered_line(_BATCH, 3, custom_id, 200, _BODY).removesuffix(b"\n")

    place = place_of_body(line)

    assert place is not None
    assert line[slice(*place)] == _BODY
    assert json.loads(line)["custom_id"] == custom_id


def test_an_answer_from_the_cache_is_not_remembered_again() -> None:
    line = answered_line(_BATCH, 3, "a", 200, _BODY, is_cached=True).removesuffix(b"\n")

    assert json.loads(line)["cached"] is True
    assert place_of_body(line) is None
    assert place_of_body(b'{"id":"x","response":null,"error":{}}') is None


def test_an_answer_stands_in_the_place_of_its_line() -> None:
    line = cached_line("ü", _BODY)

    assert line.endswith(b"}\n")
    assert cached_answer(line) == _BODY


@pytest.mark.parametrize(
    "line",
    [
        b'{"custom_id":"a","method":"POST","url":"/","body":{}}',
        b'{"custom_id":"a","method":"POST","url":"/","body":{},"cached":{"mine":1}}',
        b"no",
        b"",
    ],
)
def test_a_request_is_no_answer(line: bytes) -> None:
    assert cached_answer(line) is None
