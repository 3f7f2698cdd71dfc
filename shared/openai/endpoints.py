"""The endpoints that a batch may run: one row for each, and the only list of them. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from shared.openai.bodies import Body
from shared.openai.bodies.embedding import EmbeddingBody
from shared.openai.bodies.generation import COMPLETION_TOKENS, ChatBody, CompletionBody
from shared.openai.bodies.response import ResponseBody

#: What vLLM is started as: a model that writes, or one that gives vectors.
Runner = Literal["generate", "pooling"]


@dataclass(frozen=True)
class Endpoint:
    """What is special about the requests of one endpoint."""

    path: str
    runner: Runner
    #: The field of the body that holds the prompt; a request without it cannot run.
    content: str
    #: What is known of the other fields of the body.
    body: type[Body]
    #: What the content is: `messages` that the chat template makes a prompt of, a text or `items`
    #: of a conversation for it, or `texts` that are prompts as they are.
    prompt: Literal["messages", "items", "texts"]
    #: The fields that limit the tokens of one answer: the first one that is set counts. Empty where
    #: an answer has no tokens.
    output_limits: tuple[str, ...] = ()
    #: The engine's limit for one answer of a request that sets none, if it has one.
    default_limit: int | None = None
    #: Whether each text of the content counts against the limit of a batch's embedding inputs.
    counts_inputs: bool = False

    @property
    def has_output(self) -> bool:
        """Whether the model writes tokens."""
        return bool(self.output_limits)

    @cached_property
    def fields(self) -> frozenset[str]:
        """What the body of a request may have."""
        return self.body.open_fields()

    @property
    def has_choices(self) -> bool:
        """Whether a request may ask for several answers."""
        return "n" in self.body.model_fields


_ROWS = (
    Endpoint(
        "/v1/chat/completions",
        runner="generate",
        content="messages",
        body=ChatBody,
        prompt="messages",
        output_limits=("max_completion_tokens", "max_tokens"),
    ),
    Endpoint(
        "/v1/completions",
        runner="generate",
        content="prompt",
        body=CompletionBody,
        prompt="texts",
        output_limits=("max_tokens",),
        default_limit=COMPLETION_TOKENS,
    ),
    Endpoint(
        "/v1/embeddings",
        runner="pooling",
        content="input",
        body=EmbeddingBody,
        prompt="texts",
        counts_inputs=True,
    ),
    Endpoint(
        "/v1/responses",
        runner="generate",
        content="input",
        body=ResponseBody,
        prompt="items",
        output_limits=("max_output_tokens",),
    ),
)

#: By path, in the order in which messages and documents name them.
ENDPOINTS: Mapping[str, Endpoint] = {endpoint.path: endpoint for endpoint in _ROWS}


def endpoints_of(runner: Runner) -> tuple[str, ...]:
    """The paths that an engine of this runner can answer."""
    return tuple(path for path, endpoint in ENDPOINTS.items() if endpoint.runner == runner)


def count_inputs(value: Any) -> int:
    """How many prompts a content has: one, a list, or a list of lists of tokens or messages."""
    is_several = isinstance(value, list) and bool(value) and isinstance(value[0], str | list)
    return len(value) if is_several else 1
