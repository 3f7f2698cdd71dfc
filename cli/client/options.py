"""Arguments and options that several commands have, and how each begins and ends."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cli.client.exit_codes import ExitCode, worst
from cli.client.output import note

if TYPE_CHECKING:
    from cli.client.gateway import Gateway

Context = Annotated[
    str | None,
    typer.Option("--context", help="The context to use, instead of the current one."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON lines on a terminal, too.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until the batches have ended.")]
BatchId = Annotated[str, typer.Argument(help="The batch's id, as `batchyard ls` shows it.")]


def _from_input(batch_ids: list[str]) -> list[str]:
    """The ids, with those on standard input in place of `-`: alone, or in lines of JSON."""
    if "-" not in batch_ids:
        return batch_ids
    found = [_id_in(line) for line in map(str.strip, sys.stdin) if line]
    return [id_ for one in batch_ids for id_ in (found if one == "-" else [one])]


def _id_in(line: str) -> str:
    import json

    from shared.errors import InvalidInputError

    try:
        return str(json.loads(line)["id"]) if line.startswith("{") else line
    except (ValueError, KeyError) as error:
        raise InvalidInputError("A line of standard input is no batch with an 'id'.") from error


BatchIds = Annotated[
    list[str],
    typer.Argument(
        help="Ids of batches, as `batchyard ls` shows them; - reads them from standard input.",
        callback=_from_input,
    ),
]
FileId = Annotated[str, typer.Argument(help="The file's id, as `batchyard files ls` shows it.")]
Inputs = Annotated[
    list[Path],
    typer.Argument(
        help="Input files in JSON Lines, or tables with --template; a folder stands for "
        "its .jsonl files."
    ),
]
Template = Annotated[
    Path | None,
    typer.Option(
        "--template",
        help="The files are tables (Parquet, Arrow, CSV, JSON Lines); this YAML file makes a "
        "request of each row.",
    ),
]
TemplateModel = Annotated[
    str | None, typer.Option("--model", help="The model, instead of the template's.")
]
TemplateFields = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="NAME=VALUE, a field of each request instead of the template's; the value is JSON, "
        "or else a text; repeatable.",
    ),
]
Endpoint = Annotated[
    str | None,
    typer.Option(help="The endpoint of the requests, instead of that of the first line."),
]
Window = Annotated[str, typer.Option(help="How long the batch may take, such as 24h.")]
Priority = Annotated[
    int, typer.Option(min=0, max=9, help="Higher ones go first among your own batches.")
]
Metadata = Annotated[
    list[str] | None, typer.Option("--metadata", help="NAME=VALUE for the batch; repeatable.")
]
Cache = Annotated[
    bool,
    typer.Option(
        "--cache",
        help="Do not ask again what batches with --cache were answered before, of the same model.",
    ),
]
ResultOrder = Annotated[
    Literal["input", "completion"],
    typer.Option("--order", help="Results as in the input, or as they came."),
]


@contextmanager
def connected(context: str | None, *, waits: bool = False) -> Iterator["Gateway"]:
    """The gateway that the command speaks to; one that waits for batches is patient."""
    from cli.client.contexts import choose
    from cli.client.gateway import ASK_SECONDS, WAIT_SECONDS, Gateway

    patience = WAIT_SECONDS if waits else ASK_SECONDS
    gateway = Gateway(choose(context), patience=patience, report=note)
    try:
        yield gateway
    finally:
        gateway.close()


def end_with(codes: Iterable[ExitCode]) -> None:
    """End the command with the worst of the codes."""
    if code := worst(codes):
        raise typer.Exit(code)
