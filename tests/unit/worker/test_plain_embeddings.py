"""Which requests for embeddings have the short way. What it answers is in tests/engine."""

from types import SimpleNamespace
from typing import Any

import pytest

from worker.plain_embeddings import PlainEmbeddings

_PLAIN = {"model": "m", "input": "a text"}


def _takes(body: Any, *, cuts: bool = False) -> bool:
    serving = SimpleNamespace(
        io_processor=SimpleNamespace(enable_chunked_processing=cuts),
        _is_model_supported=lambda name: name == "m",
    )
    answers: Any = None
    return PlainEmbeddings(serving, answers).takes(body)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"input": [1, 2, 3]},
        {"encoding_format": "float"},
        {"encoding_format": "base64"},
        {"user": "somebody"},
        {"input": "a" * 4000},
    ],
    ids=str,
)
def test_a_short_text_or_its_tokens_are_plain(more: dict[str, Any]) -> None:
    assert _takes({**_PLAIN, **more})


@pytest.mark.parametrize(
    "more",
    [
        {"input": ""},
        {"input": []},
        {"input": ["a text"]},
        {"input": [[1, 2]]},
        {"input": [True, 2]},
        {"input": [1.0]},
        {"input": "a" * 4001},
        {"input": [1] * 1001},
        {"input": None},
        {"model": "another"},
        {"model": ["m"]},
        {"encoding_format": "bytes"},
        {"encoding_format": None},
        {"encoding_format": ["float"]},
        {"user": 7},
        {"dimensions": 8},
        {"messages": []},
        {"truncate_prompt_tokens": 3},
        {"anything": "else"},
    ],
    ids=lambda more: f"{str(more)[:40]}",
)
def test_everything_else_is_left_to_vllm(more: dict[str, Any]) -> None:
    assert not _takes({**_PLAIN, **more})


@pytest.mark.parametrize("body", [None, [], "text", {"model": "m"}])
def test_what_is_no_request_is_left_to_vllm(body: Any) -> None:
    assert not _takes(body)


def test_a_model_that_cuts_long_texts_has_no_plain_requests() -> None:
    assert not _takes(_PLAIN, cuts=True)
