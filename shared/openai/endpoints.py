"""The endpoints that a batch may run: one row for each, and the only list of them. Pure."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

from shared.openai.bodies import Body
from shared.openai.bodies.embedding import EmbeddingBody
from shared.openai.bodies.generation import COMPLETION_TOKENS, ChatBody, CompletionBody
from shared.openai.bodies.hearing import HearingBody, TranscriptionBody, TranslationBody
from shared.openai.bodies.messages import MessagesBody
from shared.openai.bodies.moderation import ModerationBody
from shared.openai.bodies.pooling import ClassifyBody, PoolingBody
from shared.openai.bodies.response import ResponseBody
from shared.openai.bodies.scoring import SCORE_FORMS, RerankBody, ScoreBody

#: What vLLM is started as: a model that writes, or one that gives numbers.
Runner = Literal["generate", "pooling"]
#: What an engine does, in vLLM's words; `rerank` is a classifier of pairs with one label.
Task = Literal[
    "generate",
    "transcription",
    "embed",
    "classify",
    "rerank",
    "token_embed",
    "token_classify",
    "plugin",
    "embed&token_classify",
]
GENERATING: tuple[Task, ...] = ("generate", "transcription")
POOLING: tuple[Task, ...] = tuple(task for task in get_args(Task) if task not in GENERATING)


@dataclass(frozen=True)
class Endpoint:
    """What is special about the requests of one endpoint."""

    path: str
    #: The engines that answer it: those that do one of these.
    tasks: tuple[Task, ...]
    #: The fields of the body that hold the prompt, in each form that it may have. A request has all
    #: fields of one form.
    forms: tuple[tuple[str, ...], ...]
    #: What is known of the other fields of the body.
    body: type[Body]
    #: What a form is: `messages` that the chat template makes a prompt of, a text or `items` of a
    #: conversation for it, `texts` that are prompts as they are, the two sides of `pairs`, each
    #: of which is a prompt, or a `sound`.
    prompt: Literal["messages", "items", "texts", "pairs", "sound"]
    #: The fields that limit the tokens of one answer: the first one that is set counts. Empty where
    #: an answer has no tokens.
    output_limits: tuple[str, ...] = ()
    #: The engine's limit for one answer of a request that sets none, if it has one.
    default_limit: int | None = None
    #: Whether each text of the content counts against the limit of a batch's embedding inputs.
    counts_inputs: bool = False
    #: Whether OpenAI has it, and so fails a batch for a request without its content.
    is_openais: bool = True

    @property
    def content(self) -> str:
        """The field of the first form that is most of a prompt."""
        return self.forms[0][-1]

    def has_content(self, names: Container[str]) -> bool:
        """Whether a body with these fields has a prompt in one of its forms."""
        return any(all(name in names for name in form) for form in self.forms)

    def prompts(self, body: Mapping[str, Any]) -> int:
        """How many prompts the engine makes of the body; one at least."""
        contents = [body.get(name) for form in self.forms for name in form]
        if self.prompt == "pairs":
            return max((len(one) for one in contents if isinstance(one, list)), default=1) or 1
        # The engine reads messages instead of the input where it has both.
        return max(1, *map(count_inputs, contents)) if self.prompt == "texts" else 1

    def repeated(self, body: Mapping[str, Any]) -> Any:
        """What stands once in the body and is part of each of its prompts; None without it."""
        if self.prompt != "pairs":
            return None
        sides = next((form for form in self.forms if set(form) <= body.keys()), None)
        first = body[sides[0]] if sides else None
        if isinstance(first, list):
            return first[0] if len(first) == 1 else None
        return first

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


_COMPARING: tuple[Task, ...] = ("rerank", "embed", "token_embed")


def _score(path: str) -> Endpoint:
    return Endpoint(path, _COMPARING, SCORE_FORMS, body=ScoreBody, prompt="pairs", is_openais=False)


def _rerank(path: str) -> Endpoint:
    forms = (("query", "documents"),)
    return Endpoint(path, _COMPARING, forms, body=RerankBody, prompt="pairs", is_openais=False)


def _hearing(path: str, body: type[HearingBody]) -> Endpoint:
    return Endpoint(
        path,
        tasks=("transcription",),
        forms=(("file_url",),),
        body=body,
        prompt="sound",
        output_limits=("max_completion_tokens",),
        # Its batches have none.
        is_openais=False,
    )


_ROWS = (
    Endpoint(
        "/v1/chat/completions",
        tasks=("generate",),
        forms=(("messages",),),
        body=ChatBody,
        prompt="messages",
        output_limits=("max_completion_tokens", "max_tokens"),
    ),
    Endpoint(
        "/v1/completions",
        tasks=("generate",),
        forms=(("prompt",), ("prompt_embeds",)),
        body=CompletionBody,
        prompt="texts",
        output_limits=("max_tokens",),
        default_limit=COMPLETION_TOKENS,
    ),
    Endpoint(
        "/v1/embeddings",
        tasks=("embed",),
        forms=(("input",), ("messages",)),
        body=EmbeddingBody,
        prompt="texts",
        counts_inputs=True,
    ),
    Endpoint(
        "/v1/responses",
        tasks=("generate",),
        forms=(("input",),),
        body=ResponseBody,
        prompt="items",
        output_limits=("max_output_tokens",),
    ),
    # Of OpenAI, and not of vLLM: the engine makes it of its classes.
    Endpoint(
        "/v1/moderations",
        tasks=("classify",),
        forms=(("input",),),
        body=ModerationBody,
        prompt="texts",
    ),
    Endpoint(
        "/v1/messages",
        tasks=("generate",),
        forms=(("messages",),),
        body=MessagesBody,
        prompt="messages",
        output_limits=("max_tokens",),
        is_openais=False,
    ),
    _hearing("/v1/audio/transcriptions", TranscriptionBody),
    _hearing("/v1/audio/translations", TranslationBody),
    # vLLM has them under several paths, and clients know one or the other.
    *map(_score, ("/v1/score", "/score")),
    *map(_rerank, ("/v1/rerank", "/v2/rerank", "/rerank")),
    Endpoint(
        "/classify",
        tasks=("classify", "rerank"),
        forms=(("input",), ("messages",)),
        body=ClassifyBody,
        prompt="texts",
        is_openais=False,
    ),
    Endpoint(
        "/pooling",
        tasks=POOLING,
        forms=(("input",), ("messages",)),
        body=PoolingBody,
        prompt="texts",
        is_openais=False,
    ),
)

#: By path, in the order in which messages and documents name them.
ENDPOINTS: Mapping[str, Endpoint] = {endpoint.path: endpoint for endpoint in _ROWS}
#: Every field that holds a prompt, whatever the endpoint.
CONTENTS: frozenset[str] = frozenset(
    {name for endpoint in _ROWS for form in endpoint.forms for name in form}
)


def endpoints_of(tasks: Iterable[Task]) -> tuple[str, ...]:
    """The paths that an engine can answer that does these tasks."""
    done = set(tasks)
    return tuple(path for path, endpoint in ENDPOINTS.items() if done & set(endpoint.tasks))


def count_inputs(value: Any) -> int:
    """How many prompts a content has: one, a list, or a list of lists of tokens or messages."""
    is_several = isinstance(value, list) and bool(value) and isinstance(value[0], str | list)
    return len(value) if is_several else 1
