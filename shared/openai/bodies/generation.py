"""The bodies of chat completions and completions. Pure."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, Field

from shared.openai.bodies.answer_form import (
    ResponseFormat,
    StructuredOutputs,
    constraint_conflicts,
    format_conflicts,
)
from shared.openai.bodies.body import Body
from shared.openai.bodies.fields import (
    Int64,
    LogprobCount,
    Message,
    MinP,
    Object,
    Penalty,
    Positive,
    Repetition,
    Temperature,
    Token,
    TopK,
    TopP,
    Words,
    logit_bias_conflicts,
)
from shared.openai.bodies.refusals import Refusal, wrong

#: The tokens of a completion whose request sets no limit.
COMPLETION_TOKENS = 16


class _Function(BaseModel):
    name: str
    description: str | None = None
    parameters: Object | None = None
    strict: bool | None = None


class Tool(BaseModel):
    """A function that the model may call."""

    type: Literal["function"] = "function"
    function: _Function


def _budget(value: object) -> object:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise wrong("Input should be a valid integer")
    return value


class _GenerateBody(Body):
    """What chat completions and completions have in common."""

    compared: ClassVar[frozenset[str]] = frozenset(
        {
            "logprob_token_ids",
            "min_tokens",
            "n",
            "stream_options",
            "structured_outputs",
        }
    )
    # A beam search does not look at most sampling parameters.
    exempting: ClassVar[str] = "use_beam_search"
    # A beam search enters the engine as many requests, past its order and its limits. The others
    # cost the engine's one scheduler time for each token, or enlarge results without a limit.
    closed: ClassVar[frozenset[str]] = Body.closed | {
        "repetition_detection",
        "routed_experts_prompt_start",
        "use_beam_search",
    }
    unread: ClassVar[frozenset[str]] = Body.unread | {
        "return_token_ids",
        "return_token_offsets",
        "return_tokens_as_token_ids",
    }

    frequency_penalty: Penalty | None = 0.0
    presence_penalty: Penalty | None = 0.0
    repetition_penalty: Repetition | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    logit_bias: dict[str, float] | None = None
    seed: Int64 | None = None
    stop: Words | list[Words] | None = None
    stop_token_ids: list[int] | None = None
    bad_words: list[Words] = Field(default=[])
    min_tokens: Annotated[int, Field(ge=0)] = 0
    ignore_eos: bool = False
    use_beam_search: bool = False
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=2**63 - 1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    prompt_logprobs: LogprobCount | None = None
    logprob_token_ids: list[int] | None = None
    allowed_token_ids: list[int] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    stream: bool | None = False
    stream_options: Object | None = None
    thinking_token_budget: Annotated[int, Field(ge=-1), BeforeValidator(_budget)] | None = None
    session_id: str | None = None
    stream_interval: Positive | None = None

    @property
    def _max_tokens(self) -> int | None:
        raise NotImplementedError

    def conflicts(self, raw: Mapping[str, Any]) -> Iterator[Refusal]:
        limit = self._max_tokens
        if limit is not None and self.min_tokens > limit:
            yield Refusal(
                "min_tokens", f"Input should not be above the {limit} tokens of the limit"
            )
        if raw.get("stream_options") and not raw.get("stream"):
            yield Refusal("stream_options", "Input is only allowed together with 'stream'")
        yield from logit_bias_conflicts(self.logit_bias)
        if self.response_format is not None:
            yield from format_conflicts(self.response_format, alone=not self.structured_outputs)
        if self.structured_outputs is not None:
            yield from constraint_conflicts(raw["structured_outputs"])


class ChatBody(_GenerateBody):
    """The body of a chat completion."""

    compared: ClassVar[frozenset[str]] = _GenerateBody.compared | {
        "top_logprobs",
        "tool_choice",
        "add_generation_prompt",
        "continue_final_message",
    }

    # A template is a program.
    closed: ClassVar[frozenset[str]] = _GenerateBody.closed | {"chat_template"}
    unread: ClassVar[frozenset[str]] = _GenerateBody.unread | {
        "audio",
        "modalities",
        "moderation",
        "prediction",
        "return_assistant_tokens_mask",
        "return_prompt_text",
        "verbosity",
        "web_search_options",
    }

    messages: list[Message]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: Positive | None = 1
    logprobs: bool | None = False
    top_logprobs: LogprobCount | None = 0
    tools: list[Tool] | None = None
    tool_choice: Any = "none"
    parallel_tool_calls: bool | None = True
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        None
    )
    include_reasoning: bool = True
    echo: bool = False
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    documents: list[dict[str, str]] | None = None
    chat_template: str | None = None
    mm_processor_kwargs: Object | None = None
    chat_template_kwargs: Object | None = None
    media_io_kwargs: dict[str, Object] | None = None

    @property
    def _max_tokens(self) -> int | None:
        if self.max_completion_tokens is not None:
            return self.max_completion_tokens
        return self.max_tokens

    def conflicts(self, raw: Mapping[str, Any]) -> Iterator[Refusal]:
        limit = self._max_tokens
        if limit is not None and limit < 1:
            name = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
            yield Refusal(name, "Input should be greater than or equal to 1")
        yield from super().conflicts(raw)
        yield from _greedy_conflicts(self.n, self.temperature)
        wants_logprobs = raw.get("logprobs")
        if self.top_logprobs and not wants_logprobs:
            yield Refusal("top_logprobs", "Input is only allowed where 'logprobs' is true")
        if self.logprob_token_ids and not wants_logprobs:
            yield Refusal("logprob_token_ids", "Input is only allowed where 'logprobs' is true")
        if raw.get("continue_final_message") and raw.get("add_generation_prompt"):
            yield Refusal(
                "continue_final_message", "Input and 'add_generation_prompt' cannot both be true"
            )
        yield from self._tool_conflicts(raw)

    def _tool_conflicts(self, raw: Mapping[str, Any]) -> Iterator[Refusal]:
        if self.tools == []:
            yield Refusal("tools", "Input should hold at least one tool, or be left out")
        choice = raw.get("tool_choice")
        if choice is None or choice == "none":
            return
        if self.tools is None:
            yield Refusal("tool_choice", "Input is only allowed together with 'tools'")
        elif isinstance(choice, dict):
            function = choice.get("function")
            name = function.get("name") if isinstance(function, dict) else None
            if not isinstance(name, str) or not name:
                yield Refusal("tool_choice", "Input should name a function")
            elif name not in [tool.function.name for tool in self.tools]:
                yield Refusal("tool_choice", "Input should name one of the 'tools'")
        elif choice not in ("auto", "required"):
            yield Refusal(
                "tool_choice", "Input should be 'none', 'auto', 'required' or a named function"
            )


class CompletionBody(_GenerateBody):
    """The body of a completion."""

    # Embeddings come as a pickled tensor.
    closed: ClassVar[frozenset[str]] = _GenerateBody.closed | {"prompt_embeds"}
    unread: ClassVar[frozenset[str]] = _GenerateBody.unread | {"best_of"}

    prompt: list[Token] | list[list[Token]] | str | list[str] | None = None
    prompt_embeds: Any = None
    max_tokens: int | None = COMPLETION_TOKENS
    n: Positive = 1
    echo: bool | None = False
    logprobs: LogprobCount | None = None
    suffix: str | None = None
    add_special_tokens: bool = True

    @property
    def _max_tokens(self) -> int | None:
        limit = COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens
        # Only the prompt is wanted; the engine writes one token all the same.
        return 1 if limit == 0 and self.echo else limit

    def conflicts(self, raw: Mapping[str, Any]) -> Iterator[Refusal]:
        limit = self._max_tokens
        if limit is not None and limit < 1:
            yield Refusal("max_tokens", "Input should be greater than or equal to 1")
        if self.prompt in (None, "") and self.prompt_embeds in (None, []):
            yield Refusal("prompt", "Input should not be empty")
        yield from super().conflicts(raw)
        yield from _greedy_conflicts(self.n, self.temperature)
        if self.logprob_token_ids and self.logprobs is None:
            yield Refusal("logprob_token_ids", "Input is only allowed together with 'logprobs'")


def _greedy_conflicts(choices: int | None, temperature: float | None) -> Iterator[Refusal]:
    if temperature == 0 and (choices or 1) > 1:
        yield Refusal("n", "Input should be 1 where 'temperature' is 0")
