"""The table that a batch asks for, and which columns it has. Pure."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from shared.errors import InvalidInputError
from shared.input_places import is_in
from shared.integers import Integer
from shared.table.answer_shape import MalformedSchemaError, Shape, shape_of

Format = Literal["parquet", "jsonl", "csv"]

#: What a column of ours can hold, besides `input.NAME` and `answer.FIELD`.
MADE = (
    "custom_id",
    "answer",
    "parsed",
    "embedding",
    "response",
    "finish_reason",
    "status_code",
    "input_tokens",
    "cached_tokens",
    "output_tokens",
    "error_code",
    "error",
)
_INPUT, _ANSWER = "input.", "answer."
_OF_ANSWERS = ("finish_reason", "input_tokens", "output_tokens")
_OF_ERRORS = ("error_code", "error")
_WRITING = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages")
_MAX_COLUMNS = 1000
#: How often a row may be asked again.
MAX_RETRIES = 10
_MAX_NAME = 256
_MAX_SHOWN = 100


#: The URL of a folder in S3.
FOLDER = r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/([^\u0000-\u001f*?]+/)?$"


class Output(BaseModel):
    """The table that is made of a batch's results, in the order of its input."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    format: Format = Field(default="parquet", description="Of its files.")
    columns: list[str] | dict[str, str] | None = Field(
        default=None,
        max_length=_MAX_COLUMNS,
        description=f"What it has, or what each column has by the column's name: "
        f"{', '.join(f'`{one}`' for one in MADE)}, `input.NAME` for a column that the input "
        "carries, or `answer.FIELD` for a field of the schema. Without it, all that the endpoint "
        "gives.",
    )
    answer_schema: dict[str, Any] | None = Field(
        default=None,
        alias="schema",
        description="The JSON schema of the answers, whose fields become typed columns. Without "
        "it, that of the template's `response_format`, if there is one.",
    )
    retries: Integer = Field(
        default=0,
        ge=0,
        le=MAX_RETRIES,
        # Left out if it is zero, so that old fingerprints stay valid.
        exclude_if=lambda count: not count,
        description="How often a request is asked again whose answer is no JSON or does not have "
        "the schema's types. What that takes counts as the batch's. The batch's `asked_again` says "
        "how often it happened.",
    )
    destination: str | None = Field(
        default=None,
        max_length=900,
        pattern=FOLDER,
        description="The URL of a folder in a place of the tenant's own, ending with a slash; the "
        "table gets a folder of its own in it. Without it, the table lies beside the results.",
    )


class Column(msgspec.Struct, frozen=True):
    """A column of a table: its name, and what it has."""

    name: str
    source: str

    @property
    def carried(self) -> str | None:
        """The column of the input that it has; None for another."""
        return self.source.removeprefix(_INPUT) if self.source.startswith(_INPUT) else None

    @property
    def field(self) -> str | None:
        """The field of the parsed answer that it has; None for another."""
        return self.source.removeprefix(_ANSWER) if self.source.startswith(_ANSWER) else None


class WantedTable(msgspec.Struct, frozen=True):
    """A table as the batch's manifest keeps it, with nothing left open."""

    format: Format
    columns: list[Column]
    schema: dict[str, Any] | None = None
    destination: str | None = None


class RowsTable(msgspec.Struct, frozen=True):
    """A table of rows whose columns are JSON, as a pipeline's record keeps it.

    Columns have what the rows have under `source`. `shapes` are those that are known of their
    values, and `embeddings` have vectors; types of others are found in the values.
    """

    format: Format
    columns: list[Column]
    destination: str | None = None
    shapes: dict[str, Shape] = {}
    embeddings: list[str] = []


def wanted_table(
    output: Output,
    *,
    endpoint: str,
    carry: Sequence[str] = (),
    template: Mapping[str, Any] | None = None,
    places: Sequence[str] = (),
) -> WantedTable:
    """The table for a batch at this endpoint, whose input carries these columns.

    `places` are the tenant's own. Raises InvalidInputError that names the field.
    """
    schema = output.answer_schema or template_schema(template or {})
    try:
        shape = None if schema is None else shape_of(schema)
    except MalformedSchemaError as error:
        raise _invalid("schema", str(error)) from error
    fields = () if shape is None or shape.kind != "object" else tuple(shape.fields)
    if output.retries and schema is None:
        raise _invalid("retries", "there is no 'schema' that an answer could fail to fit")
    require_own(output.destination, places)
    known = {*MADE, *(_INPUT + one for one in carry), *(_ANSWER + one for one in fields)}
    if schema is None:
        known.discard("parsed")
    columns = named(output.columns) or _default(endpoint, carry, fields, has_schema=bool(schema))
    require_columns(columns, known)
    return WantedTable(output.format, columns, schema, output.destination)


def require_own(destination: str | None, places: Sequence[str]) -> None:
    """Raise InvalidInputError for a folder that is in none of the tenant's places."""
    if destination is None:
        return
    bucket, _, prefix = destination.removeprefix("s3://").partition("/")
    if not is_in(bucket, prefix, places):
        raise _invalid("destination", f"only folders under {', '.join(places)} are yours")


def require_columns(columns: Sequence[Column], known: Collection[str]) -> None:
    """Raise InvalidInputError for a column that there is not, and for a name twice."""
    seen = set[str]()
    for column in columns:
        if column.source not in known:
            raise _unknown(column.source, known)
        if not 0 < len(column.name) <= _MAX_NAME:
            raise _invalid("columns", f"a name has 1 to {_MAX_NAME} characters")
        if column.name in seen:
            text = (
                f"two columns have the name '{column.name}'. Name them yourself, as in "
                f'{{"{column.name}_": "{column.source}"}}'
            )
            raise _invalid("columns", text)
        seen.add(column.name)


def named(columns: list[str] | dict[str, str] | None) -> list[Column]:
    """The columns that a client names; none if it names none."""
    match columns:
        case None:
            return []
        case dict():
            return [Column(name, source) for name, source in columns.items()]
        case _:
            return [Column(_name_of(source), source) for source in columns]


def _name_of(source: str) -> str:
    return source.removeprefix(_INPUT).removeprefix(_ANSWER)


def _default(
    endpoint: str, carry: Sequence[str], fields: Sequence[str], *, has_schema: bool
) -> list[Column]:
    sources = ["custom_id", *(_INPUT + one for one in carry)]
    if endpoint in _WRITING:
        sources += ["answer", *(_ANSWER + one for one in fields)]
        sources += ["parsed"] if has_schema and not fields else []
        sources += _OF_ANSWERS
    else:
        sources += ["embedding" if endpoint == "/v1/embeddings" else "response", "input_tokens"]
    return [Column(_name_of(source), source) for source in (*sources, *_OF_ERRORS)]


def template_schema(template: Mapping[str, Any]) -> dict[str, Any] | None:
    """The schema that a template asks the model for."""
    form = template.get("response_format")
    wanted = form.get("json_schema") if isinstance(form, dict) else None
    found = wanted.get("schema") if isinstance(wanted, dict) else None
    return found if isinstance(found, dict) else None


def _unknown(source: str, known: Collection[str]) -> InvalidInputError:
    shown = source[:_MAX_SHOWN]
    if source.startswith(_INPUT):
        return _invalid("columns", f"'{shown}': name that column in 'input.carry' too")
    return _invalid("columns", f"there is no '{shown}'. There are: {', '.join(sorted(known))}")


def _invalid(name: str, text: str) -> InvalidInputError:
    param = f"output.{name}"
    return InvalidInputError(f"Invalid '{param}': {text}.", param=param, code="invalid_value")
