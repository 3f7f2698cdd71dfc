"""`batchyard tenants`: what tenants may do and have, in the fleet's S3 and Redis.

Every process knows a change within a second or two; nothing has to be restarted.
"""

import json
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Annotated, Any

import msgspec
import typer

from cli.options import (
    HERE,
    AsJson,
    RedisUrl,
    RunDir,
    echo_table,
    require_tenant,
    with_state,
)
from cli.s3_options import S3Options, with_s3_options
from cli.trail import told
from shared.errors import InvalidInputError
from shared.ledger.tenants import change_tenant, read_tenant
from shared.settings import TenantDefaults
from shared.state import Rate, State, Usage
from shared.tenants import EVERY_TENANT, LIMITS, TenantSettings, changed, weights

app = typer.Typer(no_args_is_help=True, help="Show and set what tenants may do and have.")

Tenant = Annotated[str | None, typer.Argument(help="The tenant; none with --default.")]
Default = Annotated[
    bool,
    typer.Option("--default", help="What holds for every tenant that has nothing of its own."),
]


def _option(name: str) -> Any:
    """The option of a limit, with what it counts."""
    return typer.Option(help=f"{LIMITS[name][0].upper()}{LIMITS[name][1:]}.")


@app.command("set")
@with_s3_options
def set_(
    tenant: Tenant = None,
    *,
    default: Default = False,
    weight: Annotated[
        float | None, typer.Option(help="In the fair share; 2 is twice the share of others.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="A model that the tenant sees and may use; repeatable. '*' is all."),
    ] = None,
    requests_per_minute: Annotated[int | None, _option("requests_per_minute")] = None,
    file_requests_per_minute: Annotated[int | None, _option("file_requests_per_minute")] = None,
    batches_per_hour: Annotated[int | None, _option("batches_per_hour")] = None,
    enqueued_requests: Annotated[int | None, _option("enqueued_requests")] = None,
    enqueued_tokens: Annotated[int | None, _option("enqueued_tokens")] = None,
    kept_batches: Annotated[int | None, _option("kept_batches")] = None,
    stored_bytes: Annotated[int | None, _option("stored_bytes")] = None,
    event_streams: Annotated[int | None, _option("event_streams")] = None,
    downloads: Annotated[int | None, _option("downloads")] = None,
    live_requests_per_minute: Annotated[int | None, _option("live_requests_per_minute")] = None,
    live_tokens_per_minute: Annotated[int | None, _option("live_tokens_per_minute")] = None,
    live_calls: Annotated[int | None, _option("live_calls")] = None,
    engine_deaths_per_day: Annotated[int | None, _option("engine_deaths_per_day")] = None,
    webhook_endpoints: Annotated[int | None, _option("webhook_endpoints")] = None,
    custom_id_characters: Annotated[int | None, _option("custom_id_characters")] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(help="Forget this setting, so that the usual one holds; repeatable."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would hold, and change nothing.")
    ] = False,
    run_dir: RunDir = HERE,
    redis_url: RedisUrl = None,
    s3: S3Options,
    as_json: AsJson = False,
) -> None:
    """Set some of a tenant's limits, weight and models; the others stay as they are."""
    who = _who(tenant, default=default)
    given = {
        "weight": weight,
        "models": None if model is None else tuple(dict.fromkeys(model)),
        "requests_per_minute": requests_per_minute,
        "file_requests_per_minute": file_requests_per_minute,
        "batches_per_hour": batches_per_hour,
        "enqueued_requests": enqueued_requests,
        "enqueued_tokens": enqueued_tokens,
        "kept_batches": kept_batches,
        "stored_bytes": stored_bytes,
        "event_streams": event_streams,
        "downloads": downloads,
        "live_requests_per_minute": live_requests_per_minute,
        "live_tokens_per_minute": live_tokens_per_minute,
        "live_calls": live_calls,
        "engine_deaths_per_day": engine_deaths_per_day,
        "webhook_endpoints": webhook_endpoints,
        "custom_id_characters": custom_id_characters,
    }
    changes = {name: value for name, value in given.items() if value is not None}
    forgotten = tuple(name.replace("-", "_") for name in unset or ())
    if not changes and not forgotten:
        raise InvalidInputError("Nothing to set: name a setting, or one to --unset.")
    if default and "weight" in changes:
        raise InvalidInputError(
            "--weight: not with --default. A tenant without a weight of its own has 1."
        )
    storage = s3.storage(run_dir)

    async def work(state: State) -> TenantSettings:
        await storage.prepare()
        if dry_run:
            return changed(await read_tenant(storage, who), changes, forgotten)
        return await change_tenant(state, storage, who, changes, forgotten)

    with nullcontext() if dry_run else told(run_dir, "tenant.changed", tenant=tenant, about=who):
        settings = with_state(work, run_dir, redis_url)
    if as_json:
        typer.echo(json.dumps({**_named(who), "dry_run": dry_run, "set": _shown(settings)}))
        return
    typer.echo(f"{'would be' if dry_run else 'set'}  {_title(who)}")
    for name, value in _shown(settings).items():
        typer.echo(f"  {name}  {_text(value)}")


@app.command()
def show(
    tenant: Tenant = None,
    *,
    default: Default = False,
    run_dir: RunDir = HERE,
    redis_url: RedisUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show what holds for a tenant, where it was set, and what is used of it.

    What nobody has set is read from the `BATCHYARD_*` variables of this command.
    """
    who = _who(tenant, default=default)
    defaults = TenantDefaults()

    async def work(state: State) -> tuple[dict[str, TenantSettings], Usage | None]:
        found = await state.tenants.all()
        return found, None if default else await _usage(state, who, found, defaults)

    found, usage = with_state(work, run_dir, redis_url)
    rows = list(_rows(who, found, defaults, usage))
    if as_json:
        settings = {
            name: {"value": value, "from": place, **({} if used is None else {"used": used})}
            for name, value, place, used in rows
        }
        typer.echo(json.dumps({**_named(who), "settings": settings}))
        return
    table = [(name, _text(value), place, _text(used)) for name, value, place, used in rows]
    echo_table([("SETTING", "VALUE", "FROM", "USED"), *table])


@app.command("ls")
def list_tenants(
    *, run_dir: RunDir = HERE, redis_url: RedisUrl = None, as_json: AsJson = False
) -> None:
    """List the tenants that have API keys or settings, with what they use."""
    defaults = TenantDefaults()

    async def work(state: State) -> list[tuple[str, TenantSettings, int, Usage]]:
        found = await state.tenants.all()
        keys = [key for key in await state.keys.all() if key.revoked_at is None]
        names = {key.tenant for key in keys} | found.keys() - {EVERY_TENANT}
        return [
            (
                name,
                found.get(name, TenantSettings()),
                sum(key.tenant == name for key in keys),
                await _usage(state, name, found, defaults),
            )
            for name in sorted(names)
        ]

    listed = with_state(work, run_dir, redis_url)
    if as_json:
        typer.echo(
            json.dumps(
                [
                    {
                        "tenant": name,
                        "keys": keys,
                        "set": _shown(own),
                        "used": usage._asdict(),
                    }
                    for name, own, keys, usage in listed
                ]
            )
        )
        return
    rows = [("TENANT", "KEYS", "ENQUEUED", "STORED BYTES", "STREAMS", "ENGINE DEATHS", "SET")]
    rows += [
        (
            name,
            str(keys),
            f"{usage.enqueued_requests:,}",
            f"{usage.stored_bytes:,}",
            str(usage.event_streams),
            str(usage.engine_deaths),
            ", ".join(_shown(own)) or "-",
        )
        for name, own, keys, usage in listed
    ]
    echo_table(rows)


def _who(tenant: str | None, *, default: bool) -> str:
    if (tenant is None) != default:
        raise InvalidInputError("Name a tenant, or give --default.")
    if tenant is None:
        return EVERY_TENANT
    require_tenant(tenant)
    return tenant


async def _usage(
    state: State, tenant: str, found: dict[str, TenantSettings], defaults: TenantDefaults
) -> Usage:
    holds = _holds(tenant, found, defaults)
    return await state.tenants.usage(
        tenant,
        (
            Rate("requests", holds.requests_per_minute or 1, 60),
            Rate("files", holds.file_requests_per_minute or 1, 60),
            Rate("batches", holds.batches_per_hour or 1, 3600),
            Rate("live", holds.live_requests_per_minute or 1, 60),
            Rate("live-tokens", holds.live_tokens_per_minute or 1, 60),
        ),
    )


def _rows(
    tenant: str, found: dict[str, TenantSettings], defaults: TenantDefaults, usage: Usage | None
) -> Iterator[tuple[str, Any, str, Any]]:
    """Each setting with its value, who has set it, and what is used of it."""
    own, common = found.get(tenant, TenantSettings()), found.get(EVERY_TENANT, TenantSettings())
    holds, used = _holds(tenant, found, defaults), _used(usage)
    for name in TenantSettings.__struct_fields__:
        value = getattr(holds, name)
        if getattr(own, name) is not None:
            place = "default" if tenant == EVERY_TENANT else "tenant"
        else:
            place = "settings" if getattr(common, name) is None else "default"
        if name == "weight":
            value = weights(found, defaults.tenant_weights).get(tenant, 1.0)
        elif name == "models":
            value = ["*"] if value is None else list(value)
        yield name, value, place, used.get(name)


def _holds(
    tenant: str, found: dict[str, TenantSettings], defaults: TenantDefaults
) -> TenantSettings:
    own, common = found.get(tenant, TenantSettings()), found.get(EVERY_TENANT, TenantSettings())
    return own.over(common).over(defaults.tenant)


def _used(usage: Usage | None) -> dict[str, Any]:
    if usage is None:
        return {}
    return {
        "requests_per_minute": usage.calls["requests"],
        "file_requests_per_minute": usage.calls["files"],
        "batches_per_hour": usage.calls["batches"],
        "enqueued_requests": usage.enqueued_requests,
        "enqueued_tokens": dict(usage.enqueued_tokens),
        "kept_batches": usage.kept_batches,
        "stored_bytes": usage.stored_bytes,
        "event_streams": usage.event_streams,
        "downloads": usage.downloads,
        "live_requests_per_minute": usage.calls["live"],
        "live_tokens_per_minute": usage.calls["live-tokens"],
        "live_calls": usage.live_calls,
        "engine_deaths_per_day": usage.engine_deaths,
        "webhook_endpoints": usage.webhook_endpoints,
    }


def _shown(settings: TenantSettings) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(settings)
    return shown


def _named(tenant: str) -> dict[str, str | None]:
    return {"tenant": None if tenant == EVERY_TENANT else tenant}


def _title(tenant: str) -> str:
    return "for every tenant" if tenant == EVERY_TENANT else tenant


def _text(value: Any) -> str:
    match value:
        case None:
            return "-"
        case dict():
            return ", ".join(f"{name}: {count:,}" for name, count in value.items()) or "0"
        case list() | tuple():
            return ", ".join(value)
        case float():
            return f"{value:g}"
        case _:
            return f"{value:,}"
