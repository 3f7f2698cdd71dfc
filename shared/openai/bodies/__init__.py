"""What the body of a request may hold: whatever the engine refuses by the body alone is found here.

There is one model for each endpoint. The models say what vLLM 0.29 says, in its lax way of reading
("5" is a number), and leave out what depends on the engine's settings. A field that no model names
is accepted unseen, as in the engine. `tests/engine/test_bodies.py` compares the two. Pure.
"""

import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)
from pydantic_core import PydanticCustomError

#: The tokens of a completion whose request sets no limit.
COMPLETION_TOKENS = 16
#: The roles whose messages may have no content.
_SILENT_ROLES = ("assistant", "function")


class Refusal(NamedTuple):
    """Why the engine would refuse a body; `param` is the field, dotted, None for the whole body."""

    param: str | None
    message: str


def _wrong(message: str) -> PydanticCustomError:
    return PydanticCustomError("refused", message)


def _number(value: object) -> object:
    # The engine compares these fields before it reads them, so text is no number here.
    if value is not None and not isinstance(value, int | float):
        raise _wrong("Input should be a valid integer")
    return value


def _budget(value: object) -> object:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise _wrong("Input should be a valid integer")
    return value


def _message(value: object) -> object:
    if not isinstance(value, dict):
        raise _wrong("Input should be an object with a role and a content")
    if "author" in value:
        # Harmony's own form, which the engine also takes.
        return value
    if not isinstance(value.get("role"), str):
        raise _wrong("A message needs a role, and it should be a string")
    if "content" in value:
        _check_content(value["content"], value["role"])
    if value.get("name") is not None and not isinstance(value["name"], str):
        raise _wrong("The name of a message should be a string")
    calls = value.get("tool_calls")
    if isinstance(calls, int | float | str) or (
        isinstance(calls, list) and not all(isinstance(call, dict) for call in calls)
    ):
        raise _wrong("The tool_calls of a message should be an array of objects")
    return value


def _check_content(content: object, role: str) -> None:
    if content is None and role not in _SILENT_ROLES:
        raise _wrong("The content of a message should be a string or an array, not null")
    if isinstance(content, bool | int | float) or (content and isinstance(content, dict)):
        raise _wrong("The content of a message should be a string or an array")
    if not isinstance(content, list):
        return
    for part in content:
        if not isinstance(part, dict | str):
            raise _wrong("A part of a message's content should be an object")
        if (
            isinstance(part, dict)
            and part.get("type") == "text"
            and part.keys() <= {"type", "text"}
            and not isinstance(part.get("text"), str)
        ):
            raise _wrong("A part of the type 'text' needs a text, and it should be a string")


def _item(value: object) -> object:
    if not isinstance(value, dict):
        raise _wrong("Input should be an object")
    return value


_Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
_Positive = Annotated[int, Field(ge=1)]
_TopK = Annotated[int, Field(ge=-1)]
_Penalty = Annotated[float, Field(ge=-2, le=2)]
_Repetition = Annotated[float, Field(gt=0, le=sys.float_info.max)]
_Temperature = Annotated[float, Field(ge=0, le=2)]
_TopP = Annotated[float, Field(gt=0, le=1)]
_MinP = Annotated[float, Field(ge=0, le=1)]
_Words = Annotated[str, Field(min_length=1)]
_LogprobCount = Annotated[int, Field(ge=-1), BeforeValidator(_number)]
_CacheSalt = Annotated[str, Field(min_length=1, max_length=1024)]
_Message = Annotated[Any, AfterValidator(_message)]
_Item = Annotated[Any, AfterValidator(_item)]
_Token = Annotated[int, Field(ge=0)]
_Object = dict[str, Any]


class Body(BaseModel):
    """What the bodies of all endpoints have in common."""

    model_config = ConfigDict(extra="ignore", populate_by_name=False)
    #: Fields that `conflicts` compares with others.
    compared: ClassVar[frozenset[str]] = frozenset()
    #: A field that brings other rules with it: the engine alone judges the bodies that have it.
    exempting: ClassVar[str] = ""

    model: str | None = None
    user: str | None = None
    request_id: str = ""
    priority: _Int64 = 0
    cache_salt: _CacheSalt | None = None

    def conflicts(self, raw: Mapping[str, Any]) -> Iterator[Refusal]:  # noqa: ARG002  # subclasses do
        """What is wrong with the fields together; `raw` is the body as it came."""
        yield from ()


class _JsonSchema(BaseModel):
    name: str
    description: str | None = None
    schema_: _Object | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """The form that the answer has to have."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: Any = None


class _StructuredOutputs(BaseModel):
    KINDS: ClassVar = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")

    json_: str | _Object | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None


class _Function(BaseModel):
    name: str
    description: str | None = None
    parameters: _Object | None = None
    strict: bool | None = None


class Tool(BaseModel):
    """A function that the model may call."""

    type: Literal["function"] = "function"
    function: _Function


class _GenerateBody(Body):
    """What chat completions and completions have in common."""

    compared: ClassVar[frozenset[str]] = frozenset(
        {"n", "min_tokens", "logprob_token_ids", "structured_outputs", "stream_options"}
    )
    # A beam search does not look at most sampling parameters.
    exempting: ClassVar[str] = "use_beam_search"

    frequency_penalty: _Penalty | None = 0.0
    presence_penalty: _Penalty | None = 0.0
    repetition_penalty: _Repetition | None = None
    temperature: _Temperature | None = None
    top_p: _TopP | None = None
    top_k: _TopK | None = None
    min_p: _MinP | None = None
    logit_bias: dict[str, float] | None = None
    seed: _Int64 | None = None
    stop: _Words | list[_Words] | None = None
    stop_token_ids: list[int] | None = None
    bad_words: list[_Words] = []
    min_tokens: Annotated[int, Field(ge=0)] = 0
    ignore_eos: bool = False
    use_beam_search: bool = False
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=2**63 - 1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    prompt_logprobs: _LogprobCount | None = None
    logprob_token_ids: list[int] | None = None
    allowed_token_ids: list[int] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: _StructuredOutputs | None = None
    stream_options: _Object | None = None
    thinking_token_budget: Annotated[int, Field(ge=-1), BeforeValidator(_budget)] | None = None
    session_id: str | None = None
    stream_interval: _Positive | None = None

    @property
    def _max_tokens(self) -> int | None:
        raise NotImplementedError

    def conflicts(self, raw: Mapping[str, Any]) -> Iterator[Refusal]:
        limit = self._max_tokens
        if limit is not None and self.min_tokens > limit:
            yield Refusal(
                "min_tokens", f"Input should not be above the {limit} tokens of the limit"
            )
        if raw.get("stream_options"):
            yield Refusal("stream_options", "Input is only allowed together with 'stream'")
        yield from _logit_bias_conflicts(self.logit_bias)
        if self.response_format is not None:
            yield from _format_conflicts(self.response_format, alone=not self.structured_outputs)
        if self.structured_outputs is not None:
            yield from _constraint_conflicts(raw["structured_outputs"])


class ChatBody(_GenerateBody):
    """The body of a chat completion."""

    compared: ClassVar[frozenset[str]] = _GenerateBody.compared | {
        "top_logprobs",
        "tool_choice",
        "add_generation_prompt",
        "continue_final_message",
    }

    messages: list[_Message]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: _Positive | None = 1
    logprobs: bool | None = False
    top_logprobs: _LogprobCount | None = 0
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
    mm_processor_kwargs: _Object | None = None
    chat_template_kwargs: _Object | None = None
    media_io_kwargs: dict[str, _Object] | None = None

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

    prompt: list[_Token] | list[list[_Token]] | str | list[str] | None = None
    prompt_embeds: Any = None
    max_tokens: int | None = COMPLETION_TOKENS
    n: _Positive = 1
    echo: bool | None = False
    logprobs: _LogprobCount | None = None
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


class EmbeddingBody(Body):
    """The body of a request for embeddings."""

    compared: ClassVar[frozenset[str]] = frozenset({"normalize"})
    # The engine reads them instead of the input.
    exempting: ClassVar[str] = "messages"

    input: (
        list[int]
        | list[list[int]]
        | str
        | list[str]
        | list[_Message]
        | list[Annotated[list[_Message], Field(min_length=1)]]
    )
    dimensions: _Positive | None = None
    encoding_format: Literal["float", "base64", "bytes", "bytes_only"] = "float"
    embed_dtype: str = "float32"
    endianness: Literal["native", "big", "little"] = "native"
    add_special_tokens: bool = True
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    use_activation: bool | None = None
    mm_processor_kwargs: _Object | None = None
    normalize: Any = None

    def conflicts(self, raw: Mapping[str, Any]) -> Iterator[Refusal]:
        if "normalize" in raw:
            yield Refusal("normalize", "Input is no longer supported; use 'use_activation'")


class _TextFormat(BaseModel):
    type: Literal["text", "json_object", "json_schema"]


class _TextConfig(BaseModel):
    format: _TextFormat | None = None


class _Reasoning(BaseModel):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None


class ResponseBody(Body):
    """The body of a request for a response; the engine alone judges the items of its input."""

    compared: ClassVar[frozenset[str]] = frozenset(
        {"background", "prompt", "structured_outputs", "text", "tool_choice", "tools"}
    )

    input: str | list[_Item] | Annotated[_Object, Field(max_length=0)]
    instructions: str | None = None
    max_output_tokens: _Positive | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] | None = None
    background: bool | None = False
    store: bool | None = True
    parallel_tool_calls: bool | None = True
    previous_response_id: str | None = None
    prompt: Any = None
    reasoning: _Reasoning | None = None
    include_reasoning: bool = True
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] = "auto"
    temperature: _Temperature | None = None
    top_p: _TopP | None = None
    top_k: _TopK | None = None
    top_logprobs: int | None = 0
    frequency_penalty: _Penalty | None = None
    presence_penalty: _Penalty | None = None
    repetition_penalty: _Repetition | None = None
    logit_bias: dict[str, float] | None = None
    seed: _Int64 | None = None
    stop: str | list[_Words] | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    structured_outputs: _StructuredOutputs | None = None
    text: _TextConfig | None = None
    tool_choice: Literal["none", "auto", "required"] | _Object = "auto"
    tools: list[_Object] = []
    truncation: Literal["auto", "disabled"] | None = "disabled"
    session_id: str | None = None
    mm_processor_kwargs: _Object | None = None
    chat_template_kwargs: _Object | None = None
    media_io_kwargs: dict[str, _Object] | None = None

    def conflicts(self, raw: Mapping[str, Any]) -> Iterator[Refusal]:
        if raw.get("background") and not raw.get("store", True):
            yield Refusal("background", "Input is only allowed where 'store' is true")
        if raw.get("prompt") is not None:
            yield Refusal("prompt", "Prompt templates are not supported")
        if self.tool_choice == "required" and not self.tools:
            yield Refusal("tool_choice", "Input is only allowed together with 'tools'")
        yield from _logit_bias_conflicts(self.logit_bias)
        if self.structured_outputs is not None:
            yield from _constraint_conflicts(raw["structured_outputs"])


def _greedy_conflicts(choices: int | None, temperature: float | None) -> Iterator[Refusal]:
    if temperature == 0 and (choices or 1) > 1:
        yield Refusal("n", "Input should be 1 where 'temperature' is 0")


def _logit_bias_conflicts(bias: Mapping[str, float] | None) -> Iterator[Refusal]:
    for token in bias or ():
        try:
            int(token)
        except ValueError:
            yield Refusal("logit_bias", "Every key should be the number of a token")
            return


def _format_conflicts(form: ResponseFormat, *, alone: bool) -> Iterator[Refusal]:
    if form.type == "structural_tag" or (form.json_schema is None and form.type != "json_schema"):
        return
    try:
        schema = _JsonSchema.model_validate(form.json_schema)
    except ValidationError as error:
        yield _first(error, form.json_schema, ("response_format", "json_schema"))
        return
    if form.type == "json_schema" and schema.schema_ is None and alone:
        yield Refusal("response_format.json_schema.schema", "Field required")


def _constraint_conflicts(outputs: Mapping[str, Any]) -> Iterator[Refusal]:
    kinds = _StructuredOutputs.KINDS
    if sum(outputs.get(kind) is not None for kind in kinds) != 1:
        yield Refusal("structured_outputs", f"Input should hold one of {', '.join(kinds)}")


def read_body(model: type[Body], body: Any) -> Body | Refusal | None:
    """The body as its model reads it, or why the engine would refuse it.

    None where the engine has rules for it that are not known here.
    """
    if not isinstance(body, dict):
        return Refusal(None, "Input should be an object")
    if model.exempting and body.get(model.exempting, False) is not False:
        return None
    try:
        found = model.model_validate(body)
    except ValidationError as error:
        return _first(error, body, ())
    return next(found.conflicts(body), found)


def _first(error: ValidationError, body: Any, prefix: tuple[str, ...]) -> Refusal:
    """The most exact of what pydantic says; of several kinds that a field may have, all of them."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    paths = [_path(problem["loc"], body, problem["type"]) for problem in problems]
    deepest = max(paths, key=len)
    messages = dict.fromkeys(
        problem["msg"] for problem, path in zip(problems, paths, strict=True) if path == deepest
    )
    return Refusal(".".join((*prefix, *deepest)) or None, ", or ".join(messages))


def _path(steps: tuple[int | str, ...], body: Any, kind: str) -> tuple[str, ...]:
    """Where in the body a problem is: pydantic's location without the names of its own types."""
    path: list[str] = []
    for step in steps:
        is_index = isinstance(body, list) and isinstance(step, int) and step < len(body)
        if is_index or (isinstance(body, dict) and step in body):
            body = body[step]
        elif not (kind == "missing" and step == steps[-1]):
            continue
        path.append(str(step))
    return tuple(path)
