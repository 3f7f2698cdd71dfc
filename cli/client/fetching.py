"""Reads the results of a batch, to standard output or to a file that is continued."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from cli.client.batch_commands import error_lines
from cli.client.downloads import download
from cli.client.gateway import Gateway
from cli.client.output import note
from cli.client.results import Order, Results
from cli.client.results import only_failed as of_failed
from cli.client.sinks import PartFile, write
from shared.errors import InvalidInputError
from shared.lifecycle import FINAL


def fetch(
    gateway: Gateway,
    batch: Mapping[str, Any],
    *,
    order: Order = "input",
    only_failed: bool = False,
    output: Path | None = None,
) -> None:
    """Write the batch's results, as far as there are any, and say why it failed if it did."""
    for line in error_lines(batch):
        note(line)
    if output is None:
        write(_lines(gateway, batch, order, only_failed=only_failed))
        return
    has_ended = batch["status"] in FINAL
    # The lines of those parts would not say where in the results they end.
    is_new = only_failed or not has_ended
    with PartFile(output, f"{batch['id']}.{'new' if is_new else order}") as part:
        if is_new:
            part.begin_again()
            lines = _lines(gateway, batch, order, only_failed=only_failed)
        else:
            begun = part.whole_lines()
            if begun:
                note(f"{output}: {begun} lines were there already.")
            lines = Results(gateway, batch["id"], order=order, offset=begun).read()
        write(lines, part.file)
        part.finish()
    note(f"Wrote {output}.")


def download_to(gateway: Gateway, file_id: str, path: Path) -> None:
    """Download a file; one that was broken off is continued."""
    with PartFile(path, file_id) as part:
        write(download(gateway, file_id, start=part.size()), part.file)
        part.finish()


def fetch_table(gateway: Gateway, batch: Mapping[str, Any], output: Path | None) -> None:
    """Write a batch's or a pipeline's table: one file, or its files into a folder.

    Raises InvalidInputError.
    """
    table = batch.get("table") or {}
    file_ids = table.get("file_ids", [])
    if table.get("error"):
        note(table["error"]["message"])
    if not file_ids and table.get("url"):
        raise InvalidInputError(f"The table of {batch['id']} is at {table['url']}.")
    if not file_ids:
        raise InvalidInputError(
            f"{batch['id']} has no table. What is created with 'output' has one at its end, "
            "if it has rows."
        )
    if output is None and len(file_ids) > 1:
        raise InvalidInputError(
            f"The table of {batch['id']} has {len(file_ids)} files. Name a folder with --output."
        )
    if output is None:
        write(download(gateway, file_ids[0]))
        return
    is_folder = output.is_dir() or len(file_ids) > 1
    for number, file_id in enumerate(file_ids):
        name = f"part-{number:05d}.{table['format']}"
        path = output / name if is_folder else output
        download_to(gateway, file_id, path)
    note(f"Wrote {output}.")


def _lines(
    gateway: Gateway, batch: Mapping[str, Any], order: Order, *, only_failed: bool
) -> Iterator[bytes]:
    if not only_failed:
        return Results(gateway, batch["id"], order=order).read()
    if batch["status"] in FINAL and order == "input":
        # It has exactly these lines.
        file_id = batch["error_file_id"]
        return download(gateway, file_id) if file_id else iter(())
    return of_failed(Results(gateway, batch["id"], order=order).read())
