"""What a caller may say of a batch over rows."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from pydantic import BaseModel

from shared.errors import InvalidInputError

Schema = Mapping[str, Any] | type[BaseModel]


class Options(TypedDict, total=False):
    """The options of `run`, `arun` and `submit`; docs/python.md has the table of them."""

    model: str
    #: The JSON schema of the answers, or a pydantic model: its fields become typed columns.
    schema: Schema
    #: How often a row is asked again whose answer does not fit the schema.
    retries: int
    endpoint: str
    #: More fields of each request, such as `{"max_tokens": 20}`.
    body: Mapping[str, Any]
    #: Which columns there are, as `output.columns` of docs/tables.md.
    columns: Sequence[str] | Mapping[str, str]
    #: Before the names of all new columns.
    prefix: str
    #: How long the batch may take, as `24h`.
    window: str
    #: 0 to 9; higher ones go first among your own batches.
    priority: int
    metadata: Mapping[str, str]
    #: Do not ask again what batches with `cache` were answered before, of the same model.
    cache: bool
    #: Make a new batch, even of rows that were asked before.
    again: bool
    #: Raise RowsFailed if a row has an error.
    check: bool
    #: Show how far the batch is, on standard error.
    progress: bool
    #: The gateway and the key; otherwise as the command line finds them.
    base_url: str
    api_key: str
    #: A context of the command line instead.
    context: str


def require_known(options: Mapping[str, object]) -> None:
    """Raises InvalidInputError if one of them is no option, such as a field of requests."""
    if unknown := [name for name in options if name not in Options.__annotations__]:
        raise InvalidInputError(
            f"There is no option '{unknown[0]}'. Fields of the requests stand in body={{…}}."
        )
