"""`batchyard tune`: finds the settings with which an engine answers the most rows."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.catalog_edit import NoPlaceError, with_values
from cli.options import AsJson
from cli.rewriting import EditedError, rewrite
from shared.catalog import Catalog
from shared.catalog_file import CatalogError, catalog_of, catalog_text
from shared.errors import SetupError

_PLACES = {
    "seats": ("engine", "max_num_seqs"),
    "batched_tokens": ("engine", "max_num_batched_tokens"),
    "fronts": ("fronts",),
}
#: A week.
_MOST_MINUTES = 7 * 24 * 60


Write = Annotated[bool, typer.Option("--write/--no-write", help="Write the best into the catalog.")]


def run(
    model: Annotated[str, typer.Argument(help="A model of the catalog.")],
    rows: Annotated[
        Path, typer.Option(help="A batch's input file with rows for it, as yours are.")
    ],
    catalog: Annotated[Path, typer.Option(help="Models and pools (YAML).")],
    minutes: Annotated[
        float, typer.Option(min=0.1, max=_MOST_MINUTES, help="How long it may take.")
    ] = 15.0,
    pool: Annotated[
        str | None, typer.Option(help="The pool that this machine is of; the model's first one.")
    ] = None,
    *,
    write: Write = True,
    as_json: AsJson = False,
) -> None:
    """Try settings of an engine on this machine, and write the best into the catalog."""
    known, best = catalog_text(catalog), None
    with _shown(minutes, quiet=as_json) as show:
        for event in _events(model, rows, catalog, minutes, pool):
            if event["event"] == "failed":
                raise SetupError(event["reason"])
            if as_json:
                typer.echo(json.dumps(event))
            show(event)
            best = event if event["event"] == "best" else best
    if best is None:
        raise SetupError("The measuring process has ended without a result; its reason is above.")
    if not as_json:
        typer.echo(_summary(best))
    # Several engines on a card are a matter of the pool, which is for all of its models.
    if write and best["replicas"] == 1 and best["rows_per_second"] > best["before"]:
        write_best(catalog, model, best, known=known)
        typer.echo(f"Written to {catalog}; engines that start from now on have it.", err=True)


def write_best(path: Path, model: str, best: Mapping[str, Any], *, known: str) -> None:
    """Put the settings into the catalog, which said `known`, or leave it as it is.

    Raises SetupError if the file would say something else then, or was edited meanwhile.
    """
    values = {
        place: int(best[field])
        for field, place in _PLACES.items()
        if best[field] != best["first"][field]
    }
    try:
        new = with_values(known, model, values, _note(best))
        _require_only(path, known, new, model, values)
        rewrite(path, known, new)
    except (NoPlaceError, CatalogError, EditedError, OSError) as error:
        reason = "it was edited meanwhile" if isinstance(error, EditedError) else error
        wanted = ", ".join(f"{'.'.join(place)}: {value}" for place, value in values.items())
        raise SetupError(
            f"{path} stays as it is ({reason}). Write it yourself: {wanted}"
        ) from error


def _require_only(
    path: Path, known: str, text: str, model: str, values: Mapping[tuple[str, ...], int]
) -> None:
    """Raise NoPlaceError unless the text says the same as the known one, but for these values."""
    if catalog_of(path, text) != _with(catalog_of(path, known), model, values):
        raise NoPlaceError("more than this entry would change")


def _with(catalog: Catalog, name: str, values: Mapping[tuple[str, ...], int]) -> Catalog:
    entry = catalog.models[name]
    engine = {place[1]: value for place, value in values.items() if place[0] == "engine"}
    update = {place[0]: value for place, value in values.items() if place[0] != "engine"}
    changed = entry.model_copy(update={**update, "engine": {**entry.engine, **engine}})
    return catalog.model_copy(update={"models": {**catalog.models, name: changed}})


def _events(
    model: str, rows: Path, catalog: Path, minutes: float, pool: str | None
) -> Iterator[dict[str, Any]]:
    """What the measuring process tells. It ends with this one, and its engines with it."""
    command = [
        *(sys.executable, "-m", "worker", "tune", model, "--catalog", str(catalog)),
        *("--rows", str(rows), "--minutes", str(minutes)),
        *(("--pool", pool) if pool else ()),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None  # noqa: S101  # it is a pipe
        try:
            for line in process.stdout:
                # Libraries write there, too.
                if line.startswith('{"event"'):
                    yield json.loads(line)
        finally:
            if process.poll() is None:
                process.terminate()


@contextmanager
def _shown(minutes: float, *, quiet: bool) -> Iterator[Any]:
    """Shows how far it is, on standard error."""
    began = time.monotonic()
    with typer.progressbar(length=round(60 * minutes), label="tuning", file=sys.stderr) as bar:

        def show(event: Mapping[str, Any]) -> None:
            bar.update(round(time.monotonic() - began) - bar.pos)
            if not quiet and event["event"] == "setting":
                typer.echo(f"\n{_line(event)}", err=True)

        yield show


def _line(event: Mapping[str, Any]) -> str:
    rate = event["rows_per_second"]
    if rate is None:
        return f"{_words(event)}: does not run: {event['reason']}"
    failed = f", {event['failed']} rows failed" if event["failed"] else ""
    return f"{_words(event)}: {rate:.1f} rows/s{failed}"


def _words(event: Mapping[str, Any]) -> str:
    return (
        f"{event['seats']} seats, {event['batched_tokens']} tokens a step, "
        f"{event['fronts']} fronts, {event['replicas']} on a card"
    )


def _summary(best: Mapping[str, Any]) -> str:
    lines = [
        f"Best of {best['tried']}: {_words(best)}: {best['rows_per_second']:.1f} rows/s, "
        f"{best['before']:.1f} with the catalog as it was.",
        f"Rows of one call: BATCHYARD_ROWS_PER_ENGINE_CALL={best['rows_per_call']}.",
    ]
    if best["replicas"] > 1:
        lines.append(
            f"Nothing is written: several engines share a card on a pool with `GPU: "
            f"{1 / best['replicas']:.4g}`, for a model with `max_replicas: {best['replicas']}`."
        )
    return "\n".join(lines)


def _note(best: Mapping[str, Any]) -> str:
    day = datetime.now(UTC).date().isoformat()
    return (
        f"{day}, {best['rows_per_second']:.1f} rows/s, {best['before']:.1f} before "
        f"(best of {best['tried']})"
    )
