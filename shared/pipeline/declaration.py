"""What a client declares as a pipeline: where its rows come from, and its stages. Pure."""

import keyword
import re
from typing import Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from shared.answer_cache import Cache
from shared.dataset.dataset import Dataset, Format, Sample
from shared.integers import Integer, Priority
from shared.table.output import FOLDER, MAX_RETRIES
from shared.table.output import Format as TableFormat

MAX_STAGES = 32
MAX_COLUMNS = 100
#: Rows that one row may be split into.
MAX_CHUNKS = 10_000
#: Of the rows that one row is split into.
MAX_SPLIT_BYTES = 16 * 1024 * 1024
#: Of a vector that is compared: products of larger ones are no 32-bit floats.
MAX_COMPONENT = 1e15
#: Rows of a table that one row may be given.
MAX_K = 1000
#: What a row of a table that is near to another one says of how near it is.
SCORE = "score"
#: How a column is named in a template.
NAME = r"^[A-Za-z_][A-Za-z0-9_]{0,63}$"
_MAX_EXPRESSION = 4096
#: Names that mean something else in a template.
_WORDS = frozenset({*keyword.kwlist, "false", "loop", "none", "row", "self", "true"})

Kind = Literal["call", "split", "filter", "deduplicate", "join", "top_k"]
KINDS: tuple[Kind, ...] = get_args(Kind)
Metric = Literal["cosine", "dot"]


def is_component(value: object) -> bool:
    """Whether it can be one of the numbers of a vector that is compared."""
    return isinstance(value, int | float) and abs(value) <= MAX_COMPONENT


class _Shape(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class Table(_Shape):
    """Rows of a table or a folder in S3, or of an uploaded file, as a batch's `input`."""

    objects: str | None = Field(default=None, max_length=1024, pattern=r"^s3://[^/]+/.+")
    file_id: str | None = Field(default=None, pattern="^file-[A-Za-z0-9_-]{1,64}$")
    format: Format | None = None
    columns: list[str] | dict[str, str] = Field(
        min_length=1,
        max_length=MAX_COLUMNS,
        description="The columns that the stages may name, as a list, or by the names that they "
        "shall have. Others are not read.",
    )

    @model_validator(mode="after")
    def _names_one_place(self) -> Self:
        if (self.objects is None) == (self.file_id is None):
            raise ValueError("name either 'objects' or 'file_id'")
        return self

    @property
    def named_columns(self) -> dict[str, str]:
        """The columns of the table by their names in the pipeline."""
        if isinstance(self.columns, dict):
            return self.columns
        return {name: name for name in self.columns}

    def rows(self, **more: Any) -> Dataset:
        """The dataset whose rendered bodies are the rows themselves."""
        row = {name: _value_of(column) for name, column in self.named_columns.items()}
        place = {"objects": self.objects, "file_id": self.file_id, "format": self.format}
        return Dataset(**{"template": row, **place, **more})


class Source(Table):
    """The rows that a pipeline begins with."""

    custom_id: str | None = Field(default=None, max_length=256)
    sample: Sample | None = None
    limit: int | None = Field(default=None, ge=1)

    def dataset(self) -> Dataset:
        """The dataset of these rows."""
        return self.rows(custom_id=self.custom_id, sample=self.sample, limit=self.limit)


class Join(Table):
    """A stage that adds to each row the columns of the row of another table with its key."""

    key: str = Field(max_length=256, description="The column of the table with the keys.")
    on: str = Field(description="The column of the pipeline's rows with the keys.")
    missing: Literal["fail", "drop", "null"] = Field(
        default="fail",
        description="What becomes of a row whose key the table does not have: it fails, it ends "
        "without a reason, or it goes on with nulls.",
    )

    def dataset(self) -> Dataset:
        """The dataset of the table's rows, each with its key."""
        whole = self.rows()
        template = {"key": _value_of(self.key), "columns": whole.template}
        return self.rows(template=template)


class TopK(Table):
    """A stage that adds to each row those rows of another table whose vectors are nearest."""

    vector: str = Field(max_length=256, description="The column of the table with the vectors.")
    query: str = Field(description="The column of the pipeline's rows with their vectors.")
    k: Integer = Field(ge=1, le=MAX_K, description="How many rows of the table, at most.")
    metric: Metric = Field(
        default="cosine", description="What is nearer: the cosine, or the dot product as it is."
    )
    into: str = Field(
        pattern=NAME,
        description="The new column: a list of objects with the table's columns and the `score`, "
        "the nearest first.",
    )

    def dataset(self) -> Dataset:
        """The dataset of the table's rows, each with its vector."""
        whole = self.rows()
        template = {"vector": _value_of(self.vector), "columns": whole.template}
        return self.rows(template=template)


class Call(_Shape):
    """A stage that sends each row to a model."""

    endpoint: str
    template: dict[str, Any] = Field(
        min_length=1,
        description="A request body in whose strings `{{ column }}` stands for the row's value.",
    )
    answer: str | None = Field(
        default=None,
        pattern=NAME,
        description="The column that the answer becomes. By default `answer`, `embedding` at the "
        "endpoint for embeddings, and otherwise `response`.",
    )
    answer_schema: dict[str, Any] | None = Field(
        default=None,
        alias="schema",
        description="The JSON schema of the answers; the fields of an object become columns. By "
        "default that of the template's `response_format`. A row whose answer is another ends.",
    )
    retries: Integer = Field(
        default=0,
        ge=0,
        le=MAX_RETRIES,
        description="How often a row is asked again whose answer does not have the schema.",
    )
    carry: list[str] | None = Field(
        default=None,
        max_length=MAX_COLUMNS,
        description="The columns that go on beside the answer; by default all.",
    )
    cache: Cache | bool | None = Field(
        default=None,
        description="`true`: rows that the tenant was answered before, for the same body and "
        "model, by a batch or stage with `cache`, are given those answers. `seconds` says for how "
        "long answers of this stage may be given again. Needs `keep`.",
    )
    keep: bool = Field(
        default=True, description="Whether the stage's own result files stay when it has ended."
    )


class Split(_Shape):
    """A stage that makes several rows of each: its text in chunks."""

    column: str
    tokens: Integer = Field(ge=1, le=1_000_000, description="Of a chunk, at most.")
    overlap: Integer = Field(
        default=0, ge=0, description="Tokens at the end of a chunk with which the next begins."
    )
    into: str | None = Field(
        default=None,
        pattern=NAME,
        description="The column that the chunk becomes. Without it, it takes its text's place.",
    )

    model: str | None = Field(
        default=None,
        description="The model whose own tokenizer counts. Without it, a token is a word, or four "
        "bytes of a longer one.",
    )

    @model_validator(mode="after")
    def _goes_on(self) -> "Split":
        if self.overlap >= self.tokens:
            raise ValueError("'overlap' must be less than 'tokens'")
        return self


class Stage(_Shape):
    """One stage: exactly one of its fields."""

    call: Call | None = None
    split: Split | None = None
    filter: str | None = Field(
        default=None,
        min_length=1,
        max_length=_MAX_EXPRESSION,
        description='Rows for which the expression is not true end, as `lang == "en"`.',
    )
    deduplicate: list[str] | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_COLUMNS,
        description="Of rows with the same values in these columns, the first one stays.",
    )
    join: Join | None = None
    top_k: TopK | None = None

    @model_validator(mode="after")
    def _is_one(self) -> "Stage":
        if len(self.model_fields_set) != 1 or getattr(self, self.kind) is None:
            raise ValueError(f"name one of {', '.join(KINDS)}")
        return self

    @property
    def table(self) -> Join | TopK | None:
        """The other table that it reads, if it reads one."""
        return self.join or self.top_k

    @property
    def kind(self) -> Kind:
        return next(kind for kind in KINDS if kind in self.model_fields_set)


class PipelineOutput(_Shape):
    """The table that is made of the rows that came through, in the order of the input."""

    format: TableFormat = Field(default="parquet", description="Of its files.")
    columns: list[str] | dict[str, str] | None = Field(
        default=None,
        max_length=MAX_COLUMNS + 1,
        description="What it has, or what each column has by the column's name: `custom_id`, and "
        "the columns that rows have behind the last stage. Without it, all.",
    )
    destination: str | None = Field(
        default=None,
        max_length=900,
        pattern=FOLDER,
        description="The URL of a folder in a place of the tenant's own, ending with a slash; the "
        "table gets a folder of its own in it. Without it, its files are files of the tenant's.",
    )


class Declaration(_Shape):
    """A pipeline as it is declared, in JSON or YAML."""

    input: Source
    stages: list[Stage] = Field(
        min_length=1,
        max_length=MAX_STAGES,
        description="In order; at least one of them is a `call`.",
    )
    output: PipelineOutput | None = None
    completion_window: str = Field(default="24h", description="The deadline of all stages.")
    priority: Priority = 5
    metadata: dict[str, str] | None = None


def _value_of(column: str) -> str:
    """The column's value, as a template of its own."""
    if re.fullmatch(NAME, column) and column not in _WORDS:
        return f"{{{{ {column} }}}}"
    # Other signs than these could end a text or a template.
    quoted = re.sub(r"[^\w .-]", lambda sign: f"\\U{ord(sign[0]):08x}", column)
    return f"{{{{ row['{quoted}'] }}}}"
