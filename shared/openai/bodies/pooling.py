"""The bodies of requests that give numbers for texts: classes, or whatever a model pools. Pure."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from shared.openai.bodies.body import Body
from shared.openai.bodies.fields import Object
from shared.openai.bodies.refusals import Refusal


class PooledBody(Body):
    """What the bodies of all models without an answer in words have in common."""

    closed: ClassVar[frozenset[str]] = Body.closed | {"chat_template"}

    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    padding: Literal["max_length", "do_not_pad"] | None = None
    use_activation: bool | None = None
    mm_processor_kwargs: Object | None = None


class TextsBody(PooledBody):
    """A body with texts, or with a conversation instead of them."""

    compared: ClassVar[frozenset[str]] = frozenset({"normalize"})
    # The engine reads them instead of the input.
    exempting: ClassVar[str] = "messages"
    unread: ClassVar[frozenset[str]] = PooledBody.unread | {
        "add_generation_prompt",
        "chat_template_kwargs",
        "continue_final_message",
        "messages",
    }

    add_special_tokens: bool = True
    normalize: Any = None

    def conflicts(self, raw: Mapping[str, Any]) -> Iterator[Refusal]:
        if "normalize" in raw:
            yield Refusal("normalize", "Input is no longer supported; use 'use_activation'")


class EncodedBody(TextsBody):
    """A body that says how the numbers of the answer are written."""

    encoding_format: Literal["float", "base64", "bytes", "bytes_only"] = "float"
    embed_dtype: str = "float32"
    endianness: Literal["native", "big", "little"] = "native"


Texts = list[int] | list[list[int]] | str | list[str]


class ClassifyBody(TextsBody):
    """The body of a request for classes."""

    input: Texts


class PoolingBody(EncodedBody):
    """The body of a request for what the model pools."""

    # What a plugin of the engine reads, which may be an address.
    closed: ClassVar[frozenset[str]] = EncodedBody.closed | {"data"}

    input: Texts
    task: (
        Literal[
            "embed", "classify", "token_embed", "token_classify", "plugin", "embed&token_classify"
        ]
        | None
    ) = None
    dimensions: Any = None

    def conflicts(self, raw: Mapping[str, Any]) -> Iterator[Refusal]:
        if self.dimensions is not None:
            yield Refusal("dimensions", "Input is not supported by this endpoint")
        yield from super().conflicts(raw)
