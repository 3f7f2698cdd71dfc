"""The body of a request for a message, which is Anthropic's form of a chat. Pure."""

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field, model_validator

from shared.openai.bodies.body import Body
from shared.openai.bodies.fields import Object, Positive
from shared.openai.bodies.refusals import wrong


class _Block(BaseModel):
    type: Literal[
        "text",
        "image",
        "tool_use",
        "tool_result",
        "tool_reference",
        "thinking",
        "redacted_thinking",
    ]
    text: str | None = None
    source: Object | None = None
    id: str | None = None
    tool_use_id: str | None = None
    name: str | None = None
    input: Object | None = None
    content: str | list[Object] | None = None
    is_error: bool | None = None
    tool_name: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None


class _Message(BaseModel):
    role: Literal["user", "assistant", "system"]
    content: str | list[_Block]


class _Tool(BaseModel):
    name: str
    description: str | None = None
    input_schema: Object
    strict: bool | None = None
    defer_loading: bool | None = None


class _ToolChoice(BaseModel):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _names_its_tool(self) -> "_ToolChoice":
        if self.type == "tool" and not self.name:
            raise wrong("Input should name a tool")
        return self


class _OutputFormat(BaseModel):
    json_schema: Object | None = Field(default=None, alias="schema")
    type: Literal["json_schema"] = "json_schema"


class _OutputConfig(BaseModel):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: _OutputFormat | None = None


class MessagesBody(Body):
    """The body of a request for a message."""

    compared: ClassVar[frozenset[str]] = frozenset(
        {"tool_choice", "tools", "output_config", "system", "stop_sequences"}
    )

    messages: list[_Message]
    max_tokens: Positive
    metadata: Object | None = None
    output_config: _OutputConfig | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = False
    system: str | list[_Block] | None = None
    temperature: float | None = None
    tool_choice: _ToolChoice | None = None
    tools: list[_Tool] | None = None
    top_k: int | None = None
    top_p: float | None = None
    chat_template_kwargs: Object | None = None
    # Nothing of Anthropic's, so vLLM does not look at them.
    user: Any = None
    request_id: Any = None
    priority: Any = None
