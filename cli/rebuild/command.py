"""`batchyard rebuild` at a terminal."""

import asyncio
import json
import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Annotated

import stamina
import typer

from cli.client.exit_codes import ExitCode
from cli.options import (
    HERE,
    AsJson,
    RedisUrl,
    RunDir,
)
from cli.rebuild.rebuild import Rebuild
from cli.rebuild.report import Progress
from cli.s3_options import S3Options, with_s3_options
from cli.trail import told
from shared.errors import SetupError, TransientError
from shared.ledger.batch_records import read_from
from shared.state import State
from shared.state.leases import Lease
from shared.storage import Storage
from shared.tasks import end

_LEASE_SECONDS = 10.0
#: What the report counts, in this order; zeros are left out.
_LINES = (
    ("packs", "packs, with batches that may have nothing else in S3"),
    ("batches", "batches in S3"),
    ("batches_kept", "had ended in Redis as well, and stay as they are"),
    ("batches_ended", "ended, by their commits"),
    ("batches_running", "run on"),
    ("slices", "slices of these"),
    ("parts", "have their results already"),
    ("files_made", "files were missing"),
    ("files_deleted", "files had been deleted"),
    ("keys", "API keys"),
    ("tenants", "tenants with settings of their own, and those for every tenant"),
    ("pipelines", "pipelines"),
    ("webhook_endpoints", "webhook endpoints"),
    ("webhook_endpoints_deleted", "webhook endpoints had been deleted"),
    ("objects_orphaned", "objects that no file has, to be swept"),
    ("problems", "batches were left out"),
    ("damaged", "damaged objects"),
)


@with_s3_options
def run(
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count what a rebuild would do, and change nothing.")
    ] = False,
    run_dir: RunDir = HERE,
    redis_url: RedisUrl = None,
    s3: S3Options,
    as_json: AsJson = False,
) -> None:
    """Rebuild the index in Redis from S3, after Redis was lost or went back to an older state.

    Until it is done, callers get 503 and no dispatcher leads. If it is killed, run it again.
    Damaged objects are named and moved to `quarantine/` in the bucket; then it exits with 8.
    """
    from cli.fleet.running import redis_url as find_redis

    redis = find_redis(run_dir, redis_url)
    storage = s3.storage(run_dir)
    began = time.monotonic()
    telling = nullcontext() if dry_run else told(run_dir, "rebuild.run", about="redis")
    with telling, _progress(is_shown=not as_json) as progress:
        rebuild = asyncio.run(_run(redis, storage, progress, dry_run=dry_run))
    seconds = time.monotonic() - began
    if as_json:
        counts = {name: rebuild.counts[name] for name, _ in _LINES}
        typer.echo(
            json.dumps(
                {
                    **counts,
                    "dry_run": dry_run,
                    "seconds": round(seconds, 1),
                    "left_out": rebuild.problems,
                    "damaged_objects": [one._asdict() for one in rebuild.damaged],
                }
            )
        )
    else:
        _show(rebuild, seconds, dry_run=dry_run)
    if rebuild.counts["damaged"]:
        raise typer.Exit(ExitCode.DAMAGED)


def _show(rebuild: Rebuild, seconds: float, *, dry_run: bool) -> None:
    for line in _report(rebuild.counts):
        typer.echo(line)
    for problem in rebuild.problems:
        typer.echo(f"left out: {problem}", err=True)
    for one in rebuild.damaged:
        place = f" (now {one.moved_to})" if one.moved_to else ""
        typer.echo(f"damaged {one.kind}: {one.key}: {one.reason}; {one.outcome}{place}", err=True)
    typer.echo(f"{'counted' if dry_run else 'done'} in {seconds:.1f} s")


async def _run(redis_url: str, storage: Storage, progress: Progress, *, dry_run: bool) -> Rebuild:
    state = State(redis_url)
    read_from(state, storage)
    rebuild = Rebuild(state, storage, progress=progress)
    broken: Exception | None = None
    try:
        await state.ping()
        if dry_run:
            await rebuild.look()
        else:
            await _alone(state, rebuild)
    except* TransientError as errors:
        broken = errors.exceptions[0]
    finally:
        storage.close()
        await state.close()
    # An exception that is raised inside `except*` becomes part of a group.
    if broken is not None:
        raise SetupError(
            f"Redis or S3 did not answer ({broken}). Run it again: half a rebuild does no harm."
        ) from broken
    return rebuild


async def _alone(state: State, rebuild: Rebuild) -> None:
    """Run it as the only rebuild of this fleet."""
    lease = state.lease("rebuild", secrets.token_hex(8), seconds=_LEASE_SECONDS)
    await _take(lease)
    holding = asyncio.create_task(_hold(lease))
    try:
        await rebuild.run()
    finally:
        await end(holding)
        await lease.release()


async def _take(lease: Lease) -> None:
    """Take the lease; a rebuild that was killed a moment ago may still hold it."""
    async for attempt in stamina.retry_context(
        on=SetupError, attempts=None, timeout=2 * _LEASE_SECONDS, wait_initial=0.5, wait_max=1
    ):
        with attempt:
            if not await lease.hold():
                raise SetupError("Another rebuild of this fleet is under way.")


async def _hold(lease: Lease) -> None:
    while True:
        await asyncio.sleep(lease.seconds / 4)
        await lease.hold()


@contextmanager
def _progress(*, is_shown: bool) -> Iterator[Progress]:
    """Progress bars on a terminal, nothing anywhere else."""
    if not is_shown or not sys.stderr.isatty():
        yield lambda _step, _share: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:<10}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        tasks = {
            step: progress.add_task(step, total=1.0)
            for step in ("keys", "webhooks", "batches", "files")
        }
        yield lambda step, share: progress.update(tasks[step], completed=share)


def _report(counts: Mapping[str, int]) -> Iterator[str]:
    for name, text in _LINES:
        if counts[name]:
            yield f"{counts[name]:>9,}  {text}"
