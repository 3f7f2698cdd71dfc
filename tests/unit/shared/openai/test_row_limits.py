from typing import Any

import pytest
from pydantic import ValidationError

from shared.openai.endpoints import ENDPOINTS
from shared.openai.row_limits import RowLimits, sequences
from shared.openai.row_rules import RowRules
from tests.bodies import CHAT, COMPLETIONS, EMBEDDINGS, GOOD, OPEN, RESPONSES

_LIMITS = RowLimits(sequences=4, logprobs=5, prompt_logprobs=2, stop=3, tokens=2, schema_bytes=100)
_LONG = ["x" * 120]


def _refused(path: str, change: dict[str, Any], limits: RowLimits = _LIMITS) -> str | None:
    found = limits.refusal(ENDPOINTS[path], {**GOOD[path], **change})
    return found and found.param


@pytest.mark.parametrize(
    ("path", "change", "param"),
    [
        (CHAT, {"n": 5}, "n"),
        (CHAT, {"n": "5"}, "n"),
        (COMPLETIONS, {"best_of": 5}, "best_of"),
        (COMPLETIONS, {"prompt": ["a"] * 5}, "prompt"),
        (COMPLETIONS, {"prompt": [[1]] * 5}, "prompt"),
        (COMPLETIONS, {"prompt": ["a", "b"], "n": 3}, "n"),
        (EMBEDDINGS, {"input": ["a"] * 5}, "input"),
        (EMBEDDINGS, {"messages": [[{"role": "user", "content": "x"}]] * 5}, "input"),
        (CHAT, {"logprobs": True, "top_logprobs": 6}, "top_logprobs"),
        (CHAT, {"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        (COMPLETIONS, {"logprobs": 6}, "logprobs"),
        (CHAT, {"prompt_logprobs": 3}, "prompt_logprobs"),
        (CHAT, {"logprob_token_ids": [1] * 6}, "logprob_token_ids"),
        (CHAT, {"stop": ["a"] * 4}, "stop"),
        (CHAT, {"stop_token_ids": [1] * 4}, "stop_token_ids"),
        (CHAT, {"bad_words": ["a"] * 4}, "bad_words"),
        (CHAT, {"logit_bias": {"1": 1, "2": 1, "3": 1}}, "logit_bias"),
        (COMPLETIONS, {"allowed_token_ids": [1, 2, 3]}, "allowed_token_ids"),
        (CHAT, {"structured_outputs": {"choice": _LONG}}, "structured_outputs"),
        (
            CHAT,
            {"response_format": {"type": "json_schema", "json_schema": _LONG}},
            "response_format",
        ),
        (CHAT, {"tools": [{"function": {"name": "f", "parameters": {"enum": _LONG}}}]}, "tools"),
        (RESPONSES, {"text": {"format": {"type": "json_schema", "schema": _LONG}}}, "text"),
    ],
)
def test_what_exceeds_a_limit_is_refused_by_the_name_of_its_field(
    path: str, change: dict[str, Any], param: str
) -> None:
    assert _refused(path, change) == param
    assert _refused(path, change, RowLimits()) is None or -1 in change.values()


@pytest.mark.parametrize(
    ("path", "change"),
    [
        (CHAT, {"n": 4}),
        (COMPLETIONS, {"prompt": ["a", "b"], "n": 2}),
        (CHAT, {"logprobs": True, "top_logprobs": 5}),
        (CHAT, {"stop": "a long text " * 50}),
        *OPEN,
    ],
)
def test_what_reaches_a_limit_is_not_refused(path: str, change: dict[str, Any]) -> None:
    assert _refused(path, change) is None


def test_a_schema_that_takes_minutes_to_compile_is_refused_by_default() -> None:
    schema = {"enum": [f"value {number}" for number in range(100_000)]}
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}

    assert _refused(CHAT, {"response_format": form}, RowLimits()) == "response_format"


@pytest.mark.parametrize(
    "change",
    [
        {"logit_bias": {str(token): 1 for token in range(1025)}},
        {"allowed_token_ids": list(range(1025))},
    ],
)
def test_more_tokens_than_the_engine_survives_are_never_taken(change: dict[str, Any]) -> None:
    assert _refused(CHAT, change, RowLimits()) == next(iter(change))
    with pytest.raises(ValidationError):
        RowLimits(tokens=1025)


def test_no_limit_of_logprobs_takes_all() -> None:
    limits = RowLimits(logprobs=None)

    assert _refused(CHAT, {"logprobs": True, "top_logprobs": -1}, limits) is None


@pytest.mark.parametrize(
    ("path", "change", "count"),
    [
        (CHAT, {}, 1),
        (CHAT, {"n": 3}, 3),
        (CHAT, {"n": "three"}, 1),
        (CHAT, {"n": -3}, 1),
        (COMPLETIONS, {"prompt": [1, 2, 3]}, 1),
        (COMPLETIONS, {"prompt": ["a", "b"], "n": 3.0}, 6),
        (EMBEDDINGS, {"input": ["a", "b"], "n": 3}, 2),
        (RESPONSES, {"input": [{}, {}]}, 1),
    ],
)
def test_sequences_are_prompts_times_answers(path: str, change: dict[str, Any], count: int) -> None:
    assert sequences(ENDPOINTS[path], {**GOOD[path], **change}) == count


@pytest.mark.parametrize(
    ("path", "given", "bounded"),
    [
        (CHAT, {}, {"max_completion_tokens": 100}),
        (CHAT, {"max_tokens": 500}, {"max_tokens": 100}),
        (
            CHAT,
            {"max_tokens": "500", "max_completion_tokens": 7},
            {"max_tokens": 100, "max_completion_tokens": 7},
        ),
        (RESPONSES, {"max_output_tokens": 100}, {"max_output_tokens": 100}),
        (EMBEDDINGS, {}, {}),
    ],
)
def test_a_larger_limit_of_tokens_is_lowered_to_the_models(
    path: str, given: dict[str, Any], bounded: dict[str, Any]
) -> None:
    rules = RowRules(limits=RowLimits(max_tokens=100))

    assert rules.bounded(path, {**GOOD[path], **given}) == {**GOOD[path], **bounded}
    assert RowRules().bounded(path, {**GOOD[path], **given}) == {**GOOD[path], **given}
