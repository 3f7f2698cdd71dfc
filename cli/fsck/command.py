"""`batchyard fsck` at a terminal."""

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from cli.client.exit_codes import ExitCode
from cli.fsck.finding import Finding
from cli.fsck.notebook import Notebook
from cli.fsck.repair import Repair
from cli.fsck.walk import Progress, Walk
from cli.options import HERE, AsJson, RedisUrl, RunDir
from cli.s3_options import S3Options, with_s3_options
from cli.trail import told
from shared.errors import SetupError, TransientError
from shared.ledger.batch_records import read_from
from shared.state import State
from shared.storage import Storage

#: Longer than any change takes from its first effect to its last.
_SETTLE_SECONDS = 3.0


@with_s3_options
def run(
    *,
    repair: Annotated[
        bool,
        typer.Option("--repair", help="Repair what can be repaired safely; delete nothing."),
    ] = False,
    fast: Annotated[
        bool,
        typer.Option(
            "--fast",
            help="Compare names, sizes and ETags, and read no object but records of batches.",
        ),
    ] = False,
    run_dir: RunDir = HERE,
    redis_url: RedisUrl = None,
    s3: S3Options,
    as_json: AsJson = False,
) -> None:
    """Compare S3 with Redis, and name what is missing, damaged, unknown or left over.

    The fleet may work meanwhile. Exits with 8 if anything was found and is not repaired.
    """
    from cli.fleet.running import redis_url as find_redis

    redis, storage = find_redis(run_dir, redis_url), s3.storage(run_dir)
    began = time.monotonic()
    with Notebook() as notebook, _progress(is_shown=not as_json) as progress:
        work = _run(redis, storage, notebook, progress, run_dir, fast=fast, repair=repair)
        walk = asyncio.run(work)
        left = _show(notebook, walk, time.monotonic() - began, as_json=as_json)
    if left:
        raise typer.Exit(ExitCode.DAMAGED)


async def _run(
    redis_url: str,
    storage: Storage,
    notebook: Notebook,
    progress: Progress,
    run_dir: Path,
    *,
    fast: bool,
    repair: bool,
) -> Walk:
    state = State(redis_url)
    read_from(state, storage)
    walk = Walk(state, storage, notebook, reads_bodies=not fast, settle_seconds=_SETTLE_SECONDS)
    try:
        if await state.restore.is_under_way():
            raise SetupError("Redis is being rebuilt from S3. Run this when the rebuild is done.")
        await walk.run(progress)
        if repair:
            await _repair(Repair(state, storage, notebook.listed), notebook, run_dir)
    except TransientError as error:
        raise SetupError(f"Redis or S3 did not answer ({error}). Run it again.") from error
    finally:
        storage.close()
        await state.close()
    return walk


async def _repair(repairs: Repair, notebook: Notebook, run_dir: Path) -> None:
    with told(run_dir, "fsck.repair") as telling:
        for page in notebook.found():
            for finding in page:
                if done := await repairs.repair(finding):
                    notebook.note_repair(finding, done)
                    telling.done(finding.key)


def _show(notebook: Notebook, walk: Walk, seconds: float, *, as_json: bool) -> int:
    """Print the findings. Returns how many are left unrepaired."""
    found = left = 0
    if as_json:
        typer.echo('{"findings": [', nl=False)
    for page in notebook.found():
        for finding in page:
            repair = notebook.repair_of(finding)
            if as_json:
                typer.echo((", " if found else "") + _as_json(finding, repair), nl=False)
            else:
                done = f" -> {repair}" if repair else ""
                text = f"{finding.problem} {finding.kind}: {finding.key}: {finding.says}{done}"
                typer.echo(text)
            found += 1
            left += not repair
    counts = {"found": found, "left": left, "seconds": round(seconds, 1), **walk.counts}
    if as_json:
        typer.echo(f"], {json.dumps(counts)[1:]}")
        return left
    typer.echo(
        f"{walk.counts['objects']:,} objects and {walk.counts['records']:,} records in "
        f"{seconds:.1f} s: {found:,} found, {left:,} left"
    )
    if walk.counts["quarantine"]:
        typer.echo(f"{walk.counts['quarantine']:,} objects are in quarantine/")
    return left


def _as_json(finding: Finding, repair: str) -> str:
    shown = finding._asdict()
    del shown["subject"], shown["about"]
    return json.dumps({**shown, "repair": repair or None})


@contextmanager
def _progress(*, is_shown: bool) -> Iterator[Progress]:
    """A progress bar on a terminal, nothing anywhere else."""
    if not is_shown or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<10}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("fsck", total=1.0)
        yield lambda share: progress.update(task, completed=share)
