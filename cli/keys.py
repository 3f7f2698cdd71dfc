"""`batchyard keys`: API keys, in the fleet's Redis and S3. Gateways need no restart."""

import json
import re
from datetime import UTC, datetime, timedelta
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
from cli.trail import told
from shared.errors import InvalidInputError
from shared.ledger.keys import change_key, create_key, revoke_key
from shared.scopes import DEFAULT_SCOPES, scopes_of
from shared.state import KeyRecord, State

app = typer.Typer(no_args_is_help=True, help="Create, list, change and revoke API keys.")

KeyId = Annotated[str, typer.Argument(help="The key's id, as `keys list` shows it.")]
Expires = Annotated[
    str | None,
    typer.Option(
        help="When the key expires: after so many days or hours (90d, 12h), at a time "
        "(2027-01-31T18:00:00Z), at the start of a day in UTC (2027-01-31), or `never`.",
    ),
]
Scopes = Annotated[
    list[str] | None,
    typer.Option(
        help="What the key may be used for; repeatable. `read`: reading everything of the tenant; "
        "`submit`: files and batches; `admin`: webhook endpoints; `operator`: what the whole fleet "
        "does, of all tenants. Default: all but `operator`."
    ),
]

_MAX_NAME_CHARACTERS = 100
_COLUMNS = (
    "ID",
    "TENANT",
    "NAME",
    "BEGINS WITH",
    "SCOPES",
    "CREATED",
    "EXPIRES",
    "LAST USED",
    "REVOKED",
)


@app.command()
@with_s3_options
def create(
    tenant: Annotated[str, typer.Option(help="The tenant that the key is for.")],
    name: Annotated[str, typer.Option(help="What the key is for.")] = "",
    *,
    expires: Expires = None,
    scope: Scopes = None,
    run_dir: RunDir = HERE,
    redis_url: RedisUrl = None,
    s3: S3Options,
    as_json: AsJson = False,
) -> None:
    """Create a key and show it, this once."""
    require_tenant(tenant)
    if len(name) > _MAX_NAME_CHARACTERS or not name.isprintable():
        raise InvalidInputError(f"--name: at most {_MAX_NAME_CHARACTERS} printable characters.")
    expires_at = None if expires is None else expiry(expires, now=datetime.now(UTC))
    scopes = DEFAULT_SCOPES if scope is None else scopes_of(scope)

    storage = s3.storage(run_dir)

    async def make(state: State) -> tuple[str, KeyRecord]:
        await storage.prepare()
        key = await create_key(
            state, storage, tenant, name=name, expires_at=expires_at, scopes=scopes
        )
        return key, await state.keys.get(key)

    with told(run_dir, "key.created", tenant=tenant) as act:
        key, record = with_state(make, run_dir, redis_url)
        act.done(record.id)
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
    rows: list[tuple[str, ...]] = [_COLUMNS]
    rows += [
        (
            record.id,
            record.tenant,
            record.name or "-",
            record.prefix or "-",
            " ".join(record.scopes),
            *map(time_text, (record.created_at, record.expires_at)),
            record.last_used or "-",
            time_text(record.revoked_at),
        )
        for record in records
    ]
    echo_table(rows)


@app.command("set")
@with_s3_options
def set_(
    key_id: KeyId,
    *,
    expires: Expires = None,
    scope: Scopes = None,
    run_dir: RunDir = HERE,
    redis_url: RedisUrl = None,
    s3: S3Options,
    as_json: AsJson = False,
) -> None:
    """Change when a key expires, and what it may be used for, at every gateway from now on."""
    if expires is None and scope is None:
        raise InvalidInputError("Nothing to set: give --expires, --scope or both.")
    expires_at = None if expires is None else expiry(expires, now=datetime.now(UTC))
    scopes = None if scope is None else scopes_of(scope)
    storage = s3.storage(run_dir)

    async def change(state: State) -> KeyRecord:
        before = await state.keys.find(key_id)
        act.tenant = before.tenant
        await change_key(
            state,
            storage,
            key_id,
            expires_at=before.expires_at if expires is None else expires_at,
            scopes=before.scopes if scopes is None else scopes,
        )
        return await state.keys.find(key_id)

    with told(run_dir, "key.changed", about=key_id) as act:
        record = with_state(change, run_dir, redis_url)
    if as_json:
        typer.echo(json.dumps(_shown(record)))
        return
    typer.echo(f"set      {key_id}")
    typer.echo(f"scopes   {' '.join(record.scopes)}")
    typer.echo(f"expires  {time_text(record.expires_at)}")


@app.command()
@with_s3_options
def revoke(
    key_id: KeyId,
    *,
    run_dir: RunDir = HERE,
    redis_url: RedisUrl = None,
    s3: S3Options,
    as_json: AsJson = False,
) -> None:
    """Revoke a key at every gateway, from now on; its batches run on."""
    storage = s3.storage(run_dir)
    with told(run_dir, "key.revoked", about=key_id):
        is_new = with_state(lambda state: revoke_key(state, storage, key_id), run_dir, redis_url)
    if as_json:
        typer.echo(json.dumps({"id": key_id, "revoked": True, "was_revoked": not is_new}))
    else:
        typer.echo(f"revoked  {key_id}" if is_new else f"{key_id} was revoked already")


def expiry(text: str, *, now: datetime) -> int | None:
    """What `--expires` says, in Unix seconds; None for never. Raises InvalidInputError."""
    if text == "never":
        return None
    if found := re.fullmatch(r"([1-9][0-9]{0,4})([dh])", text):
        unit = {"d": "days", "h": "hours"}[found[2]]
        return int((now + timedelta(**{unit: int(found[1])})).timestamp())
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInputError(
            f"--expires {text}: say 90d, 12h, 2027-01-31, 2027-01-31T18:00:00Z or never."
        ) from None
    at = at.replace(tzinfo=at.tzinfo or UTC)
    if at <= now:
        raise InvalidInputError(f"--expires {text}: that time has passed. `keys revoke` ends keys.")
    return int(at.timestamp())


def _shown(record: KeyRecord) -> dict[str, Any]:
    return {**record._asdict(), "name": record.name or None}
