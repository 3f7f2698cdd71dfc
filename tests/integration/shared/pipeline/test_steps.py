"""Rows that are taken through steps, in the process that does it."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from shared.pipeline.duplicates import row_digest, split_digests
from shared.pipeline.stepping import Dropped, Failed, Item, Outcome, Passed, Render, Step
from shared.pipeline.steps import StepsError, taken_through
from tests.models import make_model

_RENDER = Render(7, "/v1/chat/completions", {"model": "tiny", "prompt": "Say {{ text }}"})


def _taken(
    steps: Sequence[Step],
    render: Render | None,
    *texts: Any,
    tokenizers: Mapping[int, bytes] | None = None,
) -> list[Outcome]:
    items = [Item(f"r{number}", {"text": text}, (number,)) for number, text in enumerate(texts)]
    return asyncio.run(taken_through(items, steps, render, tokenizers or {}))


def test_rows_without_steps_pass_as_they_are() -> None:
    assert _taken([], None, "a") == [Passed("r0", {"text": "a"}, order=(0,))]


def test_each_row_passes_is_dropped_or_fails_for_a_reason() -> None:
    found = _taken([Step(0, filter="text + '' != 'no'")], None, "yes", "no", 5)

    assert found[:2] == [Passed("r0", {"text": "yes"}, order=(0,)), Dropped("r1", 0)]
    failed = found[2]
    assert isinstance(failed, Failed)
    assert (failed.id, failed.stage, failed.code) == ("r2", 0, "invalid_row")
    assert "5" not in failed.message


def test_chunks_are_rows_with_names_of_their_own() -> None:
    steps = [Step(0, column="text", into="chunk", tokens=1), Step(1, filter="'o' in chunk")]

    found = _taken(steps, None, "one two six")

    assert found == [
        Passed("r0#0", {"text": "one two six", "chunk": "one "}, order=(0, 0)),
        Passed("r0#1", {"text": "one two six", "chunk": "two "}, order=(0, 1)),
        Dropped("r0#2", 1),
    ]


def test_chunks_have_as_many_tokens_as_the_models_own_tokenizer_counts(tmp_path: Path) -> None:
    file = make_model(tmp_path) / "tokenizer.json"
    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_truncation()
    text = "the quick brown fox jumps over äöü 漢字 \n and zzyzx " * 20
    step = Step(4, column="text", into="text", tokens=7)

    exact = _taken([step], None, text, tokenizers={4: file.read_bytes()})
    elsewhere = _taken([step], None, text, tokenizers={3: file.read_bytes()})

    chunks = [one.columns["text"] for one in exact if isinstance(one, Passed)]
    sizes = [len(tokenizer.encode(one, add_special_tokens=False)) for one in chunks]
    assert "".join(chunks) == text
    assert max(sizes) == 7
    assert min(sizes[:-1]) >= 3
    assert exact != elsewhere


def test_several_splits_count_with_a_tokenizer_each(tmp_path: Path) -> None:
    file = (make_model(tmp_path) / "tokenizer.json").read_bytes()
    steps = [
        Step(0, column="text", into="text", tokens=3),
        Step(2, column="text", into="text", tokens=2),
    ]

    both = _taken(steps, None, "ä quick öx", tokenizers={0: file, 2: file})
    first = _taken(steps, None, "ä quick öx", tokenizers={0: file})

    assert both != first


def test_only_a_text_is_split() -> None:
    [found] = _taken([Step(3, column="text", into="text", tokens=1)], None, None)

    assert isinstance(found, Failed)
    assert (found.stage, found.code) == (3, "no_text")


def test_a_row_becomes_a_request() -> None:
    [found] = _taken([], _RENDER, "{{ 'hello' }}")

    assert isinstance(found, Passed)
    assert json.loads(found.line) == {
        "custom_id": "r0",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "tiny", "prompt": "Say {{ 'hello' }}"},
    }


def test_a_row_that_ends_the_process_ends_alone() -> None:
    endless = "text != 'b' or (text|length + 9) ** (10 ** 9) > 0"

    found = _taken([Step(0, filter=endless)], None, "a", "b", "c")

    assert [type(one) for one in found] == [Passed, Failed, Passed]


def test_a_filter_that_cannot_be_compiled_is_told() -> None:
    with pytest.raises(StepsError, match="filter"):
        _taken([Step(0, filter="text|nothing")], None, "a")


def test_equal_rows_have_one_digest_at_each_stage() -> None:
    row = {"a": [1, {"x": None}], "b": "other"}

    assert row_digest(1, row, ["a"]) == row_digest(1, {"a": [1, {"x": None}]}, ["a"])
    assert row_digest(1, row, ["a"]) != row_digest(2, row, ["a"])
    assert row_digest(1, row, ["a"]) != row_digest(1, {"a": "1"}, ["a"])
    both = row_digest(1, row, ["a"]), row_digest(2, row, ["a"])
    assert split_digests(b"".join(both)) == list(both)
