"""What one request of a model may cost. Pure."""

import json
from collections.abc import Iterator, Mapping
from math import inf
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from shared.openai.bodies import Refusal
from shared.openai.endpoints import Endpoint

#: Of OpenAI's own API, the most answers and the most inputs of one request.
MAX_ANSWERS, MAX_INPUTS = 128, 2048
_STOPS = ("stop", "stop_sequences", "stop_token_ids", "bad_words")
#: Fields that say something of single tokens, and how many tokens vLLM's runner has room for. Of
#: more than that its process dies.
_TOKENS, _MAX_TOKENS = ("logit_bias", "allowed_token_ids"), 1024


class RowLimits(BaseModel):
    """The most that one request may ask for; None is no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Prompts, times the answers to each.
    sequences: int = Field(default=256, ge=1)
    #: Of one answer. A larger number in a request is lowered to it.
    max_tokens: int | None = Field(default=None, ge=1)
    #: Alternatives for each token of an answer, and of the prompt.
    logprobs: int | None = Field(default=20, ge=0)
    prompt_logprobs: int | None = Field(default=20, ge=0)
    #: Entries of `stop`, of `stop_token_ids` and of `bad_words`.
    stop: int = Field(default=64, ge=0)
    #: Tokens in `logit_bias`, and in `allowed_token_ids`.
    tokens: int = Field(default=_MAX_TOKENS, ge=0, le=_MAX_TOKENS)
    #: Schemas, grammars, regular expressions and choices together, as JSON.
    schema_bytes: int = Field(default=131_072, ge=0)
    #: Of a processor, for compiling any one of them.
    grammar_seconds: float = Field(default=30.0, gt=0)
    #: Of memory, for the same.
    grammar_bytes: int = Field(default=1024 * 1024 * 1024, ge=1024 * 1024)
    #: Of one answer's JSON.
    result_bytes: int = Field(default=16 * 1024 * 1024, ge=1024)

    def refusal(self, endpoint: Endpoint, body: Mapping[str, Any]) -> Refusal | None:
        """The first limit that the request exceeds."""
        return next(self._refusals(endpoint, body), None)

    def _refusals(self, endpoint: Endpoint, body: Mapping[str, Any]) -> Iterator[Refusal]:
        if (count := sequences(endpoint, body)) > self.sequences:
            inputs = endpoint.prompts(body)
            name = "n" if inputs <= self.sequences and endpoint.has_choices else endpoint.content
            if name == "n" and _answers(body) > int_of(body.get("n"), 1):
                name = "best_of"
            yield Refusal(
                name,
                f"The request asks for {count} sequences (its prompts, times the answers to each), "
                f"and this model takes {self.sequences} in one request. Split the request",
            )
        yield from self._counted(body)
        size = 0.0
        for name, constraint in _constraints(body):
            size += _size(constraint)
            if size > self.schema_bytes:
                yield Refusal(
                    name,
                    "The request's schemas, grammars, expressions and choices have more than the "
                    f"{self.schema_bytes} bytes that this model takes. Use smaller ones",
                )
                return

    def _counted(self, body: Mapping[str, Any]) -> Iterator[Refusal]:
        """Fields of which there are too many."""
        for name in ("logprobs", "top_logprobs"):
            # In a chat, `logprobs` is true or false.
            if not isinstance(body.get(name), bool):
                yield from _too_many(name, int_of(body.get(name)), self.logprobs)
        yield from _too_many(
            "prompt_logprobs", int_of(body.get("prompt_logprobs")), self.prompt_logprobs
        )
        if isinstance(ids := body.get("logprob_token_ids"), list):
            yield from _too_many("logprob_token_ids", len(ids), self.logprobs)
        for name in _STOPS:
            if isinstance(some := body.get(name), list):
                yield from _too_many(name, len(some), self.stop)
        for name in _TOKENS:
            if isinstance(some := body.get(name), list | dict):
                yield from _too_many(name, len(some), self.tokens)


def sequences(endpoint: Endpoint, body: Mapping[str, Any]) -> int:
    """How many sequences the engine computes for a request: its prompts times their answers."""
    return endpoint.prompts(body) * (_answers(body) if endpoint.has_choices else 1)


def int_of(value: object, default: int = 0) -> int:
    """A number as the engine reads it, which takes "5" and 5.0 for 5; else the default."""
    if isinstance(value, int):
        return int(value)
    try:
        return int(float(value)) if isinstance(value, str | float) else default
    except (ValueError, OverflowError):
        return default


def _answers(body: Mapping[str, Any]) -> int:
    return max(1, int_of(body.get("n"), 1), int_of(body.get("best_of"), 1))


def _too_many(name: str, count: int, limit: int | None) -> Iterator[Refusal]:
    """-1 asks for as many as there are."""
    if limit is not None and (count > limit or count < 0):
        yield Refusal(name, f"Input should ask for at most {limit}, the limit of this model")


def _size(value: Any) -> float:
    try:
        return len(json.dumps(value))
    except RecursionError:
        return inf


def _constraints(body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What the engine compiles before it runs the request."""
    for name in ("response_format", "structured_outputs"):
        if isinstance(body.get(name), dict):
            yield name, body[name]
    for name in ("text", "output_config"):
        holder = body.get(name)
        if isinstance(holder, dict) and isinstance(holder.get("format"), dict):
            yield name, holder["format"]
    if isinstance(tools := body.get("tools"), list):
        yield "tools", tools
