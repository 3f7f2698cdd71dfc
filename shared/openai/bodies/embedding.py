"""The body of a request for embeddings. Pure."""

from typing import Annotated

from pydantic import Field

from shared.openai.bodies.fields import Message, Positive
from shared.openai.bodies.pooling import EncodedBody, Texts


class EmbeddingBody(EncodedBody):
    """The body of a request for embeddings."""

    input: Texts | list[Message] | list[Annotated[list[Message], Field(min_length=1)]]
    dimensions: Positive | None = None
