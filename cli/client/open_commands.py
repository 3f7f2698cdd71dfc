"""Commands on open batches, which get requests while they run."""

import secrets
import sys
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.client.batch_commands import control, line_text
from cli.client.options import (
    AsJson,
    BatchId,
    BatchIds,
    Context,
    Metadata,
    Priority,
    Wait,
    Window,
    connected,
)
from cli.client.output import print_record

#: What a gateway takes in one call.
_CALL_BYTES, _CALL_ROWS = 4 * 1024 * 1024, 10_000


def open(  # noqa: A001  # the command's name
    model: Annotated[str, typer.Argument(help="The model of all requests.")],
    endpoint: Annotated[
        str, typer.Option(help="The endpoint of all requests.")
    ] = "/v1/chat/completions",
    *,
    window: Window = "24h",
    priority: Priority = 5,
    metadata: Metadata = None,
    context: Context = None,
    as_json: AsJson = False,
) -> None:
    """Create a batch that takes requests until it is closed."""
    from cli.client.submission import metadata_of

    body = {
        "open": True,
        "model": model,
        "endpoint": endpoint,
        "completion_window": window,
        "priority": priority,
        "metadata": metadata_of(metadata) or None,
    }
    with connected(context) as gateway:
        # The key makes a repeated call harmless; another command makes another batch.
        batch = gateway.post("batches", body, key=f"open-{secrets.token_hex(20)}")
    print_record(batch, line_text, as_json=as_json)


def add(
    batch_id: BatchId,
    files: Annotated[
        list[Path] | None,
        typer.Argument(help="Files of requests in JSON Lines; without one, standard input."),
    ] = None,
    *,
    context: Context = None,
    as_json: AsJson = False,
) -> None:
    """Add requests to an open batch; those that it has already are not added again."""
    done: dict[str, Any] = {"batch_id": batch_id, "added": 0, "repeated": 0, "total": 0}
    with connected(context, waits=True) as gateway:
        for lines in _all_calls(files):
            answer = gateway.post_lines(f"batches/{batch_id}/requests", lines)
            for name in ("added", "repeated"):
                done[name] += answer[name]
            done["total"] = answer["total"]
    print_record(done, _added_text, as_json=as_json)


def close(
    batch_ids: BatchIds, context: Context = None, *, wait: Wait = False, as_json: AsJson = False
) -> None:
    """Let open batches take no more requests; they end once those that they have are done."""
    control(batch_ids, "close", context, wait=wait, as_json=as_json)


def calls(source: BufferedReader) -> Iterator[bytes]:
    """The lines of a file or a pipe as they come, as many together as one call may bring.

    Raises InvalidInputError for a line that no call may bring.
    """
    from shared.errors import InvalidInputError

    rest = b""
    while piece := source.read1(_CALL_BYTES // 2):
        *lines, rest = (rest + piece).split(b"\n")
        if len(rest) >= _CALL_BYTES:
            raise InvalidInputError(f"A line has more than {_CALL_BYTES} bytes.")
        yield from _together(lines)
    yield from _together([rest])


def _together(lines: list[bytes]) -> Iterator[bytes]:
    """Whole lines in calls of at most so many rows and bytes; blank lines are left out."""
    call: list[bytes] = []
    size = 0
    for line in lines:
        if not line.strip():
            continue
        if call and (len(call) == _CALL_ROWS or size + len(line) >= _CALL_BYTES):
            yield b"".join(call)
            call, size = [], 0
        call.append(line + b"\n")
        size += len(line) + 1
    if call:
        yield b"".join(call)


def _all_calls(files: list[Path] | None) -> Iterator[bytes]:
    if not files:
        yield from calls(sys.stdin.buffer)  # type: ignore[arg-type]  # it is buffered
        return
    from cli.client.inputs import input_files

    for path in input_files(files):
        with path.open("rb") as source:
            yield from calls(source)


def _added_text(done: Any) -> str:
    repeated = f", {done['repeated']:,} it had already" if done["repeated"] else ""
    return f"{done['batch_id']}  {done['added']:,} added{repeated}; it has {done['total']:,}"
