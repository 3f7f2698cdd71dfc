"""`batchyard keys`: API keys, in the fleet's Redis and S3. Gateways need no restart."""

import json
from typing import Annotated, Any

import typer

from cli.options import (
    HERE,
    AsJson,
    RedisUrl,
    RunDir,
    echo_secret,
    echo_table,
    require_tenant,
    time_text,
    with_state,
)
from cli.s3_options import S3Options, with_s3_options
from shared.errors import InvalidInputError
from shared.ledger.keys import create_key, revoke_key
from shared.state import KeyRecord, State

app = typer.Typer(no_args_is_help=True, help="Create, list and revoke API keys.")

_MAX_NAME_CHARACTERS = 100


@app.command()
@with_s3_options
def create(
    tenant: Annotated[str, typer.Option(help="The tenant that the key is for.")],
    name: Annotated[str, typer.Option(help="What the key is for.")] = "",
    *,
    run_dir: RunDir = HERE,
    redis_url: RedisUrl = None,
    s3: S3Options,
    as_json: AsJson = False,
) -> None:
    """Create a key and show it, this once."""
    require_tenant(tenant)
    if len(name) > _MAX_NAME_CHARACTERS or not name.isprintable():
        raise InvalidInputError(f"--name: at most {_MAX_NAME_CHARACTERS} printable characters.")

    storage = s3.storage(run_dir)

    async def make(state: State) -> tuple[str, KeyRecord]:
        await storage.prepare()
        key = await create_key(state, storage, tenant, name=name)
        return key, await state.keys.get(key)

    key, record = with_state(make, run_dir, redis_url)
    if as_json:
        typer.echo(json.dumps({"key": key, **_shown(record)}))
        return
    echo_secret(f"key      {key}\nid       {record.id}\ntenant   {tenant}")


@app.command("list")
def list_keys(
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    *,
    run_dir: RunDir = HERE,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """List all keys, the oldest first; only the beginning of a key is shown."""
    records = with_state(lambda state: state.keys.all(tenant), run_dir, redis_url)
    if as_json:
        typer.echo(json.dumps([_shown(record) for record in records]))
        return
    rows: list[tuple[str, ...]] = [
        ("ID", "TENANT", "NAME", "BEGINS WITH", "CREATED", "LAST USED", "REVOKED")
    ]
    rows += [
        (
            record.id,
            record.tenant,
            record.name or "-",
            record.prefix or "-",
            *map(time_text, (record.created_at, record.used_at, record.revoked_at)),
        )
        for record in records
    ]
    echo_table(rows)


@app.command()
@with_s3_options
def revoke(
    key_id: Annotated[str, typer.Argument(help="The key's id, as `keys list` shows it.")],
    *,
    run_dir: RunDir = HERE,
    redis_url: RedisUrl = None,
    s3: S3Options,
    as_json: AsJson = False,
) -> None:
    """Revoke a key at every gateway, from now on; its batches run on."""
    storage = s3.storage(run_dir)
    is_new = with_state(lambda state: revoke_key(state, storage, key_id), run_dir, redis_url)
    if as_json:
        typer.echo(json.dumps({"id": key_id, "revoked": True, "was_revoked": not is_new}))
    else:
        typer.echo(f"revoked  {key_id}" if is_new else f"{key_id} was revoked already")


def _shown(record: KeyRecord) -> dict[str, Any]:
    return {**record._asdict(), "name": record.name or None}
