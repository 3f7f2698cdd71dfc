"""Asks a request of each row, and returns the rows with their answers."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any, TypeVar, Unpack, overload

from batchyard.batch import submit
from batchyard.options import Options
from batchyard.requests import Template
from batchyard.threads import in_thread

#: A DataFrame of pandas or Polars, or a table of Arrow.
Table = TypeVar("Table")
_Records = Sequence[Mapping[str, Any]]


@overload
def run(data: str | Path, template: Template, **options: Unpack[Options]) -> Any: ...
@overload
def run(data: _Records, template: Template, **options: Unpack[Options]) -> list[dict[str, Any]]: ...
@overload
def run(data: Table, template: Template, **options: Unpack[Options]) -> Table: ...
def run(data: Any, template: Template, **options: Unpack[Options]) -> Any:
    """Ask a request of each row, wait, and return the rows with the answers' columns beside theirs.

    The rows' order is kept; a row that failed says so in `error`. The same call again, also after
    the end of the process, takes up the same batch. Raises what `submit` and `Batch.result` raise.
    """
    return _run(data, template, options, None)


@overload
async def arun(data: str | Path, template: Template, **options: Unpack[Options]) -> Any: ...
@overload
async def arun(
    data: _Records, template: Template, **options: Unpack[Options]
) -> list[dict[str, Any]]: ...
@overload
async def arun(data: Table, template: Template, **options: Unpack[Options]) -> Table: ...
async def arun(data: Any, template: Template, **options: Unpack[Options]) -> Any:
    """As `run`, without blocking the event loop. A cancelled call leaves its batch running."""
    stop = Event()
    try:
        return await in_thread(partial(_run, data, template, options, stop))
    finally:
        stop.set()


def _run(data: Any, template: Template, options: Options, stop: Event | None) -> Any:
    return submit(data, template, **options).result(stop)
