"""`batchyard dead-letters rows`: requests that killed engines, to be read, run again or dropped."""

import json
from typing import Annotated, Any

import msgspec
import typer

from cli.options import (
    HERE,
    All,
    AsJson,
    Ids,
    RedisUrl,
    RunDir,
    S3AccessKey,
    S3Bucket,
    S3Endpoint,
    S3Region,
    S3SecretKey,
    echo_details,
    echo_done,
    echo_table,
    require_choice,
    storage_at,
    time_text,
    with_state,
)
from shared.dead_rows import DeadRow
from shared.errors import NotFoundError, TransientError
from shared.retention import MAX_DEAD_ROWS
from shared.state import State
from shared.storage import DEFAULT_REGION

app = typer.Typer(
    invoke_without_command=True,
    help="Requests of batches that were given up because engines died of them. Where they lie is "
    "shown, never what they say.",
)

Tenant = Annotated[str | None, typer.Option(help="Only this one's.")]
OfBatch = Annotated[str | None, typer.Option("--batch", help="Only this batch's.")]
Limit = Annotated[int, typer.Option(min=1, help="At most so many, the oldest first.")]
_LIMIT = 100
_SHOWN_BY = "batchyard dead-letters rows ls"
_NOTHING = "There are no dead rows."


@app.callback()
def _list_rows(
    context: typer.Context,
    *,
    limit: Limit = _LIMIT,
    tenant: Tenant = None,
    batch: OfBatch = None,
    run_dir: RunDir = HERE,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    if context.invoked_subcommand is None:
        ls(
            limit=limit,
            tenant=tenant,
            batch=batch,
            run_dir=run_dir,
            redis_url=redis_url,
            as_json=as_json,
        )


@app.command()
def ls(
    *,
    limit: Limit = _LIMIT,
    tenant: Tenant = None,
    batch: OfBatch = None,
    run_dir: RunDir = HERE,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show what is there, as `rows` alone does."""
    found = with_state(
        lambda state: state.dead_rows.all(tenant=tenant, batch_id=batch, limit=limit),
        run_dir,
        redis_url,
    )
    if as_json:
        typer.echo(json.dumps([_shown(row) for row in found]))
        return
    rows = [("ID", "SINCE", "TENANT", "BATCH", "LINE", "CUSTOM ID", "DEATHS", "REASON")]
    rows += [
        (
            row.id,
            time_text(row.at),
            row.tenant,
            row.batch_id,
            str(row.line),
            row.custom_id[:40],
            str(row.deaths),
            row.reason[:80],
        )
        for row in found
    ]
    echo_table(rows)


@app.command()
def show(
    row_id: Annotated[str, typer.Argument(help="The id, as `ls` shows it.")],
    *,
    run_dir: RunDir = HERE,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show one with the place of its request."""
    row = with_state(lambda state: state.dead_rows.get(row_id), run_dir, redis_url)
    echo_details(_shown(row), as_json=as_json)


@app.command()
def replay(
    row_ids: Ids = None,
    *,
    every: All = False,
    run_dir: RunDir = HERE,
    redis_url: RedisUrl = None,
    s3_endpoint: S3Endpoint = None,
    s3_access_key: S3AccessKey = None,
    s3_secret_key: S3SecretKey = None,
    s3_bucket: S3Bucket = "batchyard",
    s3_region: S3Region = DEFAULT_REGION,
    as_json: AsJson = False,
) -> None:
    """Run each again in a new batch of its tenant's, alone, and take it off the list.

    Exit code 1 when some could not be: those stay on the list, each with its reason told.
    """
    from shared.submission.row_replays import replay as run_again

    require_choice(row_ids, every=every, shown_by=_SHOWN_BY)
    storage = storage_at(run_dir, s3_endpoint, s3_access_key, s3_secret_key, s3_bucket, s3_region)

    made: dict[str, str] = {}
    failed: dict[str, str] = {}

    async def work(state: State) -> None:
        try:
            for row in await _wanted(state, row_ids):
                try:
                    made[row.id] = await run_again(state, storage, row)
                except NotFoundError as error:
                    failed[row.id] = f"{error} All that can be done with it is `drop`."
                except TransientError as error:
                    # The next one would wait for the same server.
                    failed[row.id] = f"{error} What comes after it was not tried; repeat it later."
                    return
        finally:
            storage.close()

    with_state(work, run_dir, redis_url)
    if as_json:
        typer.echo(json.dumps({"replayed": made, "failed": failed}))
    else:
        for row_id, reason in failed.items():
            typer.echo(f"failed  {row_id}  {reason}", err=True)
        told = [f"{row_id}  as  {batch_id}" for row_id, batch_id in made.items()]
        if told or not failed:
            echo_done("replayed", told, nothing=_NOTHING, as_json=False)
    if failed:
        raise typer.Exit(1)


@app.command()
def drop(
    row_ids: Ids = None,
    *,
    every: All = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    run_dir: RunDir = HERE,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Take rows off the list; their batches keep the errors."""
    require_choice(row_ids, every=every, shown_by=_SHOWN_BY)
    if not yes:
        what = "all dead rows" if every else f"{len(set(row_ids or ()))} dead rows"
        typer.confirm(f"Forget {what}?", abort=True, err=True)

    async def work(state: State) -> list[str]:
        wanted = await _wanted(state, row_ids)
        return [row.id for row in wanted if await state.dead_rows.drop(row.id)]

    done = with_state(work, run_dir, redis_url)
    echo_done("dropped", done, nothing=_NOTHING, as_json=as_json)


async def _wanted(state: State, row_ids: list[str] | None) -> list[DeadRow]:
    """Those that are named, or all. Raises NotFoundError before anything is done."""
    if not row_ids:
        return await state.dead_rows.all(limit=MAX_DEAD_ROWS)
    return [await state.dead_rows.get(row_id) for row_id in dict.fromkeys(row_ids)]


def _shown(row: DeadRow) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.to_builtins(row)
    return told
