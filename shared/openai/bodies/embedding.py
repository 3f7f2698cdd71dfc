"""The body of a request for embeddings. Pure."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from shared.openai.bodies.body import Body
from shared.openai.bodies.fields import Message, Object, Positive
from shared.openai.bodies.refusals import Refusal


class EmbeddingBody(Body):
    """The body of a request for embeddings."""

    compared: ClassVar[frozenset[str]] = frozenset({"normalize"})
    # The engine reads them instead of the input.
    exempting: ClassVar[str] = "messages"
    closed: ClassVar[frozenset[str]] = Body.closed | {"chat_template"}
    unread: ClassVar[frozenset[str]] = Body.unread | {
        "add_generation_prompt",
        "chat_template_kwargs",
        "continue_final_message",
        "messages",
        "padding",
    }

    input: (
        list[int]
        | list[list[int]]
        | str
        | list[str]
        | list[Message]
        | list[Annotated[list[Message], Field(min_length=1)]]
    )
    dimensions: Positive | None = None
    encoding_format: Literal["float", "base64", "bytes", "bytes_only"] = "float"
    embed_dtype: str = "float32"
    endianness: Literal["native", "big", "little"] = "native"
    add_special_tokens: bool = True
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    use_activation: bool | None = None
    mm_processor_kwargs: Object | None = None
    normalize: Any = None

    def conflicts(self, raw: Mapping[str, Any]) -> Iterator[Refusal]:
        if "normalize" in raw:
            yield Refusal("normalize", "Input is no longer supported; use 'use_activation'")
