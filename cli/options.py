"""What the commands on a running fleet share: options, and how they print."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from shared.bus.messages import TENANT
from shared.errors import InvalidInputError, SetupError, TransientError
from shared.state import State

T = TypeVar("T")

RunDir = Annotated[Path, typer.Option(help="The fleet's folder, as given to `batchyard up`.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs.")]
RedisUrl = Annotated[
    str | None,
    typer.Option(
        envvar="BATCHYARD_REDIS_URL",
        help="The fleet's Redis, unless it is in the folder.",
        show_envvar=True,
    ),
]
S3Bucket = Annotated[str, typer.Option(envvar="BATCHYARD_S3_BUCKET", show_envvar=True)]
Ids = Annotated[list[str] | None, typer.Argument(help="Ids, as `ls` shows them.")]
All = Annotated[bool, typer.Option("--all", help="All of them.")]
HERE = Path(".batchyard")


def require_tenant(name: str) -> None:
    """Raise InvalidInputError if `--tenant` is no valid name of a tenant."""
    if not TENANT.fullmatch(name):
        raise InvalidInputError(
            f"--tenant {name}: lower-case letters, digits, '-' and '_' only, 63 at most, "
            "beginning with a letter or digit."
        )


def require_choice(ids: Sequence[str] | None, *, every: bool, shown_by: str) -> None:
    """Raise InvalidInputError unless there are either ids or --all."""
    if every == bool(ids):
        raise InvalidInputError(f"Name ids, as `{shown_by}` shows them, or give --all.")


def echo_details(details: Mapping[str, Any], *, as_json: bool) -> None:
    """Print everything that is known of one thing."""
    typer.echo(
        json.dumps(details) if as_json else json.dumps(details, indent=2, ensure_ascii=False)
    )


def echo_done(what: str, ids: Sequence[str], *, nothing: str, as_json: bool) -> None:
    """Print what was done to which ids, or `nothing` if there were none."""
    if as_json:
        typer.echo(json.dumps({what: ids}))
        return
    for one in ids:
        typer.echo(f"{what}  {one}")
    if not ids:
        typer.echo(nothing, err=True)


def echo_secret(text: str) -> None:
    """Print a secret that is shown only once, and say so."""
    typer.echo(text)
    typer.echo("Keep it now: it cannot be shown again.", err=True)


def echo_table(rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns; the first row names them."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())


def time_text(seconds: int | None) -> str:
    """Unix seconds as text; `-` for None."""
    if seconds is None:
        return "-"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def with_state(work: Callable[[State], Awaitable[T]], run_dir: Path, url: str | None) -> T:
    """What `work` returns for the Redis that was named, or the run directory's own.

    Raises SetupError, also where Redis or S3 does not answer.
    """
    from cli.fleet.running import redis_url

    found = redis_url(run_dir, url)

    async def run() -> T:
        state = State(found)
        try:
            return await work(state)
        except TransientError as error:
            raise SetupError(
                f"The fleet's Redis or S3 does not answer ({error}). Start the fleet, or set "
                "BATCHYARD_REDIS_URL and BATCHYARD_S3_ENDPOINT to where they are."
            ) from error
        finally:
            await state.close()

    return asyncio.run(run())
