"""The body of a request for a response. Pure."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field

from shared.openai.bodies.answer_form import StructuredOutputs, constraint_conflicts
from shared.openai.bodies.body import Body
from shared.openai.bodies.fields import (
    Int64,
    Item,
    Object,
    Penalty,
    Positive,
    Repetition,
    Temperature,
    TopK,
    TopP,
    Words,
    logit_bias_conflicts,
)
from shared.openai.bodies.refusals import Refusal


class _TextFormat(BaseModel):
    type: Literal["text", "json_object", "json_schema"]


class _TextConfig(BaseModel):
    format: _TextFormat | None = None


class _Reasoning(BaseModel):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None


class ResponseBody(Body):
    """The body of a request for a response; the engine alone judges the items of its input."""

    compared: ClassVar[frozenset[str]] = frozenset(
        {
            "prompt",
            "structured_outputs",
            "text",
            "tool_choice",
            "tools",
            "top_logprobs",
        }
    )

    # Nothing is kept between requests, so nobody could ask later for an answer of the background,
    # and messages in the engine's own form are not checked.
    closed: ClassVar[frozenset[str]] = Body.closed | {
        "background",
        "previous_input_messages",
        "previous_response_id",
    }
    unread: ClassVar[frozenset[str]] = Body.unread | {
        "context_management",
        "conversation",
        "enable_response_messages",
        "include",
        "moderation",
    }

    input: str | list[Item] | Annotated[Object, Field(max_length=0)]
    instructions: str | None = None
    max_output_tokens: Positive | None = None
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
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    top_logprobs: int | None = 0
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repetition_penalty: Repetition | None = None
    logit_bias: dict[str, float] | None = None
    seed: Int64 | None = None
    stop: str | list[Words] | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    stream: bool | None = False
    structured_outputs: StructuredOutputs | None = None
    text: _TextConfig | None = None
    tool_choice: Literal["none", "auto", "required"] | Object = "auto"
    tools: list[Object] = Field(default=[])
    truncation: Literal["auto", "disabled"] | None = "disabled"
    session_id: str | None = None
    mm_processor_kwargs: Object | None = None
    chat_template_kwargs: Object | None = None
    media_io_kwargs: dict[str, Object] | None = None

    def conflicts(self, raw: Mapping[str, Any]) -> Iterator[Refusal]:
        if raw.get("prompt") is not None:
            yield Refusal("prompt", "Prompt templates are not supported")
        if self.tool_choice == "required" and not self.tools:
            yield Refusal("tool_choice", "Input is only allowed together with 'tools'")
        yield from logit_bias_conflicts(self.logit_bias)
        if self.structured_outputs is not None:
            yield from constraint_conflicts(raw["structured_outputs"])
