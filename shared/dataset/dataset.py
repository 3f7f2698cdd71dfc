"""A dataset as an input: what a client asks for, and what it was pinned to. Pure."""

from typing import Any, Literal

import msgspec
from pydantic import BaseModel, ConfigDict, Field, model_validator

Format = Literal["parquet", "arrow", "csv", "jsonl", "text", "image"]

_BY_ENDING: dict[str, Format] = {
    "parquet": "parquet",
    "pq": "parquet",
    "arrow": "arrow",
    "feather": "arrow",
    "csv": "csv",
    "jsonl": "jsonl",
    "ndjson": "jsonl",
    "txt": "text",
    "md": "text",
    "png": "image",
    "jpg": "image",
    "jpeg": "image",
    "webp": "image",
    "gif": "image",
}
_MAX_COLUMN = 256
_MAX_CARRIED = 1000


class Sample(BaseModel):
    """A random part of the rows, the same for the same seed."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    fraction: float = Field(gt=0, le=1)
    seed: int = Field(default=0, ge=0, le=2**31 - 1)


class Dataset(BaseModel):
    """Rows of a table or folder, and the template that makes a request body of each."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    objects: str | None = Field(
        default=None,
        max_length=1100,
        pattern=r"^s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/[^\u0000-\u001f]+$",
        description="The URL of one object, of a folder (it ends with a slash), or of several "
        "objects (`*` stands for any text within a folder, `**` for any folders).",
    )
    file_id: str | None = Field(
        default=None, pattern="^file-[A-Za-z0-9_-]{1,64}$", description="An uploaded file instead."
    )
    format: Format | None = Field(
        default=None, description="Without it, the endings of the names say what the objects are."
    )
    template: dict[str, Any] = Field(
        min_length=1,
        description="A request body in whose strings `{{ column }}` stands for the row's value. "
        "A string that is nothing but `{{ … }}` becomes the value itself, with its type.",
    )
    custom_id: str | None = Field(
        default=None,
        max_length=_MAX_COLUMN,
        description="The column with the custom ids. Without it they are `row-1`, `row-2`, …",
    )
    filter: str | None = Field(
        default=None,
        min_length=1,
        max_length=4096,
        description='Only rows for which this expression is true, as `lang == "en"`.',
    )
    sample: Sample | None = Field(
        default=None, description="A random part of the rows that the filter lets through."
    )
    limit: int | None = Field(default=None, ge=1, description="At most so many of these rows.")
    carry: list[str] = Field(
        default=[],
        max_length=_MAX_CARRIED,
        # Left out if it is empty, so that old fingerprints stay valid.
        exclude_if=lambda names: not names,
        description="Columns that the batch's `output` gets beside the answers.",
    )

    @model_validator(mode="after")
    def _names_one_place(self) -> "Dataset":
        if (self.objects is None) == (self.file_id is None):
            raise ValueError("name either 'objects' or 'file_id'")
        return self


class Source(msgspec.Struct, frozen=True):
    """One object of a dataset as it was when the batch was created: bytes [start, start + size).

    `name` is shown to the client: the object's URL or the file's id. `columns` are those that the
    folders of a partitioned dataset name, as `lang=en/`.
    """

    name: str
    bucket: str
    key: str
    etag: str
    size: int
    format: Format
    start: int = 0
    columns: dict[str, str] = {}


class PinnedDataset(msgspec.Struct, frozen=True):
    """What a batch's rows are made of: the same bytes and the same template at any time.

    `dataset` is the client's `Dataset` as JSON.
    """

    dataset: msgspec.Raw
    sources: list[Source]


def format_of(name: str) -> Format | None:
    """The format that an object's name tells."""
    return _BY_ENDING.get(name.rpartition(".")[2].lower())
