"""The form that a request gives to its answers: JSON schemas and other constraints. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, Field, ValidationError

from shared.openai.bodies.fields import Object
from shared.openai.bodies.refusals import Refusal, first_refusal


class _JsonSchema(BaseModel):
    name: str
    description: str | None = None
    schema_: Object | None = Field(default=None, alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """The form that the answer has to have."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: Any = None


class StructuredOutputs(BaseModel):
    """vLLM's own constraints of an answer; a request has exactly one of `KINDS`."""

    KINDS: ClassVar = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")

    json_: str | Object | None = Field(default=None, alias="json")
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None


def format_conflicts(form: ResponseFormat, *, alone: bool) -> Iterator[Refusal]:
    """What is wrong with the form; `alone` if no structured outputs are given besides it."""
    if form.type == "structural_tag" or (form.json_schema is None and form.type != "json_schema"):
        return
    try:
        schema = _JsonSchema.model_validate(form.json_schema)
    except ValidationError as error:
        yield first_refusal(error, form.json_schema, ("response_format", "json_schema"))
        return
    if form.type == "json_schema" and schema.schema_ is None and alone:
        yield Refusal("response_format.json_schema.schema", "Field required")


def constraint_conflicts(outputs: Mapping[str, Any]) -> Iterator[Refusal]:
    """What is wrong with the body's `structured_outputs`, as they came."""
    kinds = StructuredOutputs.KINDS
    if sum(outputs.get(kind) is not None for kind in kinds) != 1:
        yield Refusal("structured_outputs", f"Input should hold one of {', '.join(kinds)}")
