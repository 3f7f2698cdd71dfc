"""The body of a request for a moderation. Pure."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from shared.openai.bodies.body import Body


class _Part(BaseModel):
    # A classifier reads texts alone.
    type: Literal["text"]
    text: str


class ModerationBody(Body):
    """The body of a request for a moderation."""

    input: Annotated[str, Field(min_length=1)] | list[str] | list[_Part]
    truncate_prompt_tokens: Annotated[int, Field(ge=-1)] | None = None

    def as_classification(self) -> dict[str, Any]:
        """The same as a request for classes. Parts are one text, and strings are one each."""
        given = self.input
        texts = (
            [given] if isinstance(given, str) else [one for one in given if isinstance(one, str)]
        )
        if given and not texts:
            parts = [one.text for one in given if isinstance(one, _Part)]
            texts = ["\n".join(parts)]
        return {
            "model": self.model,
            "input": texts,
            "truncate_prompt_tokens": self.truncate_prompt_tokens,
        }
