"""`batchyard keys`: who may call. Works on the fleet's Redis, and gateways need no restart."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

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
)
from shared.errors import InvalidInputError, SetupError, TransientError
from shared.state import KeyRecord, State

T = TypeVar("T")

app = typer.Typer(no_args_is_help=True, help="Make, list and revoke API keys.")

_MAX_NAME_CHARACTERS = 100


@app.command()
def create(
    tenant: Annotated[str, typer.Option(help="For whom the key acts.")],
    name: Annotated[str, typer.Option(help="What the key is for.")] = "",
    *,
    run_dir: RunDir = HERE,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Make a key and show it, this once."""
    require_tenant(tenant)
    if len(name) > _MAX_NAME_CHARACTERS or not name.isprintable():
        raise InvalidInputError(f"--name: at most {_MAX_NAME_CHARACTERS} printable characters.")

    async def make(state: State) -> tuple[str, KeyRecord]:
        key = await state.keys.create(tenant, name=name)
        return key, await state.keys.get(key)

    key, record = _with_state(make, run_dir, redis_url)
    if as_json:
        typer.echo(json.dumps({"key": key, **_shown(record)}))
        return
    echo_secret(f"key      {key}\nid       {record.id}\ntenant   {tenant}")


@app.command("list")
def list_keys(
    tenant: Annotated[str | None, typer.Option(help="Only this one's.")] = None,
    *,
    run_dir: RunDir = HERE,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show all keys, the oldest first: how they begin, never the keys themselves."""
    records = _with_state(lambda state: state.keys.all(tenant), run_dir, redis_url)
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
def revoke(
    key_id: Annotated[str, typer.Argument(help="The key's id, as `keys list` shows it.")],
    *,
    run_dir: RunDir = HERE,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Refuse a key from now on, at every gateway; its batches run on."""
    is_new = _with_state(lambda state: state.keys.revoke(key_id), run_dir, redis_url)
    if as_json:
        typer.echo(json.dumps({"id": key_id, "revoked": True, "was_revoked": not is_new}))
    else:
        typer.echo(f"revoked  {key_id}" if is_new else f"{key_id} was revoked already")


def _with_state(work: Callable[[State], Awaitable[T]], run_dir: Path, url: str | None) -> T:
    from cli.fleet.running import redis_url

    found = redis_url(run_dir, url)

    async def run() -> T:
        state = State(found)
        try:
            return await work(state)
        except TransientError as error:
            raise SetupError(
                f"The fleet's Redis does not answer ({error}). Start the fleet, or set "
                "BATCHYARD_REDIS_URL to where its Redis is."
            ) from error
        finally:
            await state.close()

    return asyncio.run(run())


def _shown(record: KeyRecord) -> dict[str, Any]:
    return {**record._asdict(), "name": record.name or None}
