"""`batchyard logs`: the lines of all processes of a fleet on this machine about one batch."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.options import HERE, AsJson, RunDir
from shared.errors import InvalidInputError, SetupError
from shared.ids import is_id

#: Of processes and servers, and of lane jobs, waves and engines.
_PATTERNS = ("*.log.1", "*.log", "ray-logs/*.log", "ray-logs/*.err", "ray-logs/serve/*.log")
_HIDDEN = frozenset({"timestamp", "level", "event", "process"})
#: What our own lines begin with, which most lines of Ray and of servers do not.
_OURS = re.compile(r'\{"')

Line = Mapping[str, Any]


def run(
    batch_id: Annotated[str, typer.Argument(help="The batch's id.")],
    *,
    run_dir: RunDir = HERE,
    as_json: AsJson = False,
) -> None:
    """Show what the processes of `batchyard up` have logged about a batch, in order.

    Lines that are about several batches, such as those of waves, are among them.
    """
    if not is_id(batch_id):
        raise InvalidInputError(f"{batch_id} is not the id of a batch. `batchyard ls` shows ids.")
    if not run_dir.is_dir():
        raise SetupError(f"{run_dir} is no folder of a fleet. Name one by --run-dir.")
    found = False
    for line in lines_about(batch_id, run_dir):
        found = True
        typer.echo(json.dumps(line) if as_json else _text(line))
    if not found:
        typer.echo(f"No line in {run_dir} is about {batch_id}: it may be too old.", err=True)


def lines_about(batch_id: str, run_dir: Path) -> Iterator[Line]:
    """The lines that name the batch, by their times."""
    files = sorted({path for pattern in _PATTERNS for path in run_dir.glob(pattern)})
    yield from merge(*(_of(path, batch_id) for path in files), key=lambda line: line["timestamp"])


def _of(path: Path, batch_id: str) -> Iterator[Line]:
    """The lines of one file, which are in order."""
    try:
        with path.open(errors="replace") as file:
            yield from sorted(_parsed(file, batch_id), key=lambda line: line["timestamp"])
    except OSError as error:
        typer.echo(f"{path} cannot be read: {error.strerror}", err=True)


def _parsed(file: Iterable[str], batch_id: str) -> Iterator[Line]:
    for text in file:
        begin = _OURS.search(text) if batch_id in text else None
        if begin is None:
            continue
        try:
            line = json.loads(text[begin.start() :])
        except ValueError:
            # The file was cut off here.
            continue
        if "timestamp" in line and "event" in line:
            yield line


def _text(line: Line) -> str:
    fields = " ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in sorted(line.items())
        if name not in _HIDDEN
    )
    at, process = line["timestamp"].partition(".")[0], line.get("process", "-")
    return f"{at}  {process:10}  {line.get('level', '-'):7}  {line['event']}  {fields}"
