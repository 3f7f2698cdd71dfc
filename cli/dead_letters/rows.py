"""`batchyard dead-letters rows`: requests that killed engines, to be run again or dropped."""

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
    echo_details,
    echo_done,
    echo_table,
    require_choice,
    time_text,
    with_state,
)
from cli.s3_options import S3Options, with_s3_options
from cli.trail import told
from shared.dead_rows import DeadRow
from shared.errors import NotFoundError, TransientError
from shared.ledger.batch_records import read_from
from shared.retention import MAX_DEAD_ROWS
from shared.state import State

app = typer.Typer(
    invoke_without_command=True,
    help="Requests that were given up because engines died of them. Their places are shown, never "
    "their contents.",
)

Tenant = Annotated[str | None, typer.Option(help="Only this tenant's.")]
OfBatch = Annotated[str | None, typer.Option("--batch", help="Only this batch's.")]
Limit = Annotated[int, typer.Option(min=1, help="Show at most this many, the oldest first.")]
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
    """List dead rows, as `rows` alone does."""
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
    """Show one row with the place of its request."""
    row = with_state(lambda state: state.dead_rows.get(row_id), run_dir, redis_url)
    echo_details(_shown(row), as_json=as_json)


@app.command()
@with_s3_options
def replay(
    row_ids: Ids = None,
    *,
    every: All = False,
    run_dir: RunDir = HERE,
    redis_url: RedisUrl = None,
    s3: S3Options,
    as_json: AsJson = False,
) -> None:
    """Run each row again alone, in a new batch of its tenant, and take it off the list.

    Exit code 1 if some could not be run: they stay on the list, and each reason is printed.
    """
    from cli.dead_letters.row_replays import replay as run_again

    require_choice(row_ids, every=every, shown_by=_SHOWN_BY)
    storage = s3.storage(run_dir)

    made: dict[str, str] = {}
    failed: dict[str, str] = {}

    async def work(state: State) -> None:
        read_from(state, storage)
        try:
            for row in await _wanted(state, row_ids):
                try:
                    made[row.id] = await run_again(state, storage, row)
                    act.tenant = row.tenant
                    act.done(row.id, made=made[row.id])
                except NotFoundError as error:
                    failed[row.id] = f"{error} It can only be dropped."
                except TransientError as error:
                    # The next row would wait for the same server.
                    failed[row.id] = f"{error} The rows after it were not tried; try again later."
                    return
        finally:
            storage.close()

    with told(run_dir, "dead_row.replayed") as act:
        with_state(work, run_dir, redis_url)
    if as_json:
        typer.echo(json.dumps({"replayed": made, "failed": failed}))
    else:
        for row_id, reason in failed.items():
            typer.echo(f"failed  {row_id}  {reason}", err=True)
        replayed = [f"{row_id}  as  {batch_id}" for row_id, batch_id in made.items()]
        if replayed or not failed:
            echo_done("replayed", replayed, nothing=_NOTHING, as_json=False)
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
        dropped = []
        for row in wanted:
            if await state.dead_rows.drop(row.id):
                dropped.append(row.id)
                act.tenant = row.tenant
                act.done(row.id)
        return dropped

    with told(run_dir, "dead_row.dropped") as act:
        done = with_state(work, run_dir, redis_url)
    echo_done("dropped", done, nothing=_NOTHING, as_json=as_json)


async def _wanted(state: State, row_ids: list[str] | None) -> list[DeadRow]:
    """The rows that are named, or all. Raises NotFoundError before anything is done."""
    if not row_ids:
        return await state.dead_rows.all(limit=MAX_DEAD_ROWS)
    return [await state.dead_rows.get(row_id) for row_id in dict.fromkeys(row_ids)]


def _shown(row: DeadRow) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(row)
    return fields
