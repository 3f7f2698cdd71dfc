"""`batchyard users`: tenants' logins at RabbitMQ, with a tenant's rights."""

import json
import secrets
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cli.options import HERE, AsJson, RunDir, echo_secret, require_tenant
from cli.servers import RabbitMQ
from cli.trail import told
from shared.bus.topology import TENANT_EVENTS, TENANT_QUEUES, VIRTUAL_HOST, Bounds, User, logins
from shared.errors import InvalidInputError, NotFoundError, SetupError

app = typer.Typer(
    no_args_is_help=True,
    help="Create, limit, list, renew and delete the RabbitMQ users of tenants.",
)

Print = Literal["definitions", "rabbitmqctl"]
TenantName = Annotated[str, typer.Argument(help="The tenant, which is also the user's name.")]
ServiceUser = Annotated[
    str,
    typer.Option(
        envvar="BATCHYARD_SERVICE_USER",
        help="The user of Batchyard's own processes; no tenant may have this name.",
        show_envvar=True,
    ),
]
_SERVICE_USER = "batchyard"
_DEFAULT = Bounds()
Connections = Annotated[int, typer.Option(min=1, help="How many connections it may open.")]
Channels = Annotated[int, typer.Option(min=1, help="How many channels, on all of them.")]
Queues = Annotated[
    list[str] | None,
    typer.Option(
        "--queue",
        help="Give it the queues sub.TENANT.NAME and reply.TENANT.NAME; repeatable. "
        f"Default: {', '.join(TENANT_QUEUES)}.",
    ),
]
Events = Annotated[
    list[str] | None,
    typer.Option(
        "--event",
        help="Send these events to its sub.TENANT.NAME, such as batch.completed; repeatable. "
        f"Default: {', '.join(TENANT_EVENTS)}.",
    ),
]
AnyQueue = Annotated[
    bool,
    typer.Option(
        "--any-queue",
        help="Let it declare and bind queues and exchanges itself, of any name and number: for a "
        "tenant that you trust not to fill the broker.",
    ),
]


@app.command()
def create(
    tenant: Annotated[str, typer.Option(help="The tenant that the user is for.")],
    *,
    to_print: Annotated[
        Print | None,
        typer.Option(
            "--print",
            help="Change nothing: print how to create the user in a broker of your own, for "
            "`rabbitmqctl import_definitions` or as `rabbitmqctl` commands.",
        ),
    ] = None,
    vhost: Annotated[str, typer.Option(help="The virtual host, with --print.")] = VIRTUAL_HOST,
    connections: Connections = _DEFAULT.connections,
    channels: Channels = _DEFAULT.channels,
    queue: Queues = None,
    event: Events = None,
    any_queue: AnyQueue = False,
    run_dir: RunDir = HERE,
    service_user: ServiceUser = _SERVICE_USER,
    as_json: AsJson = False,
) -> None:
    """Create a user with a tenant's rights and a new password, which is shown this once."""
    require_tenant(tenant)
    if tenant == service_user:
        raise InvalidInputError(
            f"--tenant {tenant}: this name belongs to Batchyard's own processes. Choose another."
        )
    bounds = _bounds(Bounds(connections, channels), queue, event, is_any=any_queue)
    user = User(tenant, secrets.token_urlsafe(24), tenant=True, bounds=bounds)
    if to_print is not None:
        with told(run_dir, "user.printed", tenant=tenant, about=tenant):
            _print(user, to_print, vhost, as_json=as_json)
        return
    from cli.fleet.running import rabbitmq

    broker = rabbitmq(run_dir)
    if tenant in _users(broker.ctl("list_users", "--formatter", "json")):
        raise InvalidInputError(
            f"--tenant {tenant}: this user exists. `batchyard users renew {tenant}` gives it a new "
            "password."
        )
    # One import creates user and rights together, and shows no password in a process list.
    with told(run_dir, "user.created", tenant=tenant, about=tenant):
        broker.import_definitions(logins([user]))
    _show(user, broker.url(user), as_json=as_json)


@app.command()
def limit(
    tenant: TenantName,
    *,
    connections: Connections = _DEFAULT.connections,
    channels: Channels = _DEFAULT.channels,
    queue: Queues = None,
    event: Events = None,
    any_queue: AnyQueue = False,
    run_dir: RunDir = HERE,
    as_json: AsJson = False,
) -> None:
    """Set what a user may hold of the broker; queues and bindings that it has already stay."""
    bounds = _bounds(Bounds(connections, channels), queue, event, is_any=any_queue)
    limits = json.dumps(bounds.limits())
    with told(run_dir, "user.limited", tenant=tenant, about=tenant):
        broker = _change(run_dir, tenant, "set_user_limits", limits)
        user = User(tenant, "", tenant=True, exists=True, bounds=bounds)
        broker.import_definitions(logins([user]))
    shown = {"user": tenant, **bounds.limits(), "queues": bounds.queues, "events": bounds.events}
    typer.echo(json.dumps(shown) if as_json else f"limited  {tenant}  {limits}")


@app.command("list")
def list_users(*, run_dir: RunDir = HERE, as_json: AsJson = False) -> None:
    """List the users of the folder's own broker."""
    from cli.fleet.running import rabbitmq

    names = sorted(_users(rabbitmq(run_dir).ctl("list_users", "--formatter", "json")))
    typer.echo(json.dumps([{"user": name} for name in names]) if as_json else "\n".join(names))


@app.command()
def renew(tenant: TenantName, *, run_dir: RunDir = HERE, as_json: AsJson = False) -> None:
    """Give a user a new password; open connections stay open."""
    user = User(tenant, secrets.token_urlsafe(24), tenant=True)
    with told(run_dir, "user.renewed", tenant=tenant, about=tenant):
        broker = _change(run_dir, tenant, "change_password", standard_input=user.password)
    _show(user, broker.url(user), as_json=as_json)


@app.command()
def delete(tenant: TenantName, *, run_dir: RunDir = HERE, as_json: AsJson = False) -> None:
    """Delete a user and close its connections; its batches run on, and its queues stay."""
    with told(run_dir, "user.deleted", tenant=tenant, about=tenant):
        _change(run_dir, tenant, "delete_user")
    typer.echo(json.dumps({"user": tenant, "deleted": True}) if as_json else f"deleted  {tenant}")


def _bounds(
    bounds: Bounds, queues: list[str] | None, events: list[str] | None, *, is_any: bool
) -> Bounds:
    if not is_any:
        named, wanted = tuple(queues or TENANT_QUEUES), tuple(events or TENANT_EVENTS)
        return replace(bounds, queues=named, events=wanted)
    if queues or events:
        raise InvalidInputError("--any-queue: it takes no --queue and no --event beside it.")
    return replace(bounds, queues=None)


def _change(
    run_dir: Path, tenant: str, command: str, *arguments: str, standard_input: str = ""
) -> RabbitMQ:
    """Run one `rabbitmqctl` command on the tenant's user. Raises NotFoundError if there is none."""
    from cli.fleet.running import rabbitmq

    broker = rabbitmq(run_dir)
    unknown = NotFoundError(f"The broker has no user of a tenant '{tenant}'.")
    if tenant == _SERVICE_USER:
        raise unknown
    try:
        broker.ctl(command, tenant, *arguments, standard_input=standard_input)
    except SetupError as error:
        if "does not exist" in str(error) or "no_such_user" in str(error):
            raise unknown from error
        raise
    return broker


def _users(listed: str) -> set[str]:
    return {row["user"] for row in json.loads(listed)}


def _show(user: User, url: str, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps({"user": user.name, "password": user.password, "url": url}))
        return
    echo_secret(f"user      {user.name}\npassword  {user.password}\nurl       {url}")


def _print(user: User, what: Print, vhost: str, *, as_json: bool) -> None:
    made = logins([user])
    for section in ("permissions", "topic_permissions", "queues", "policies", "bindings"):
        for row in made[section]:
            row["vhost"] = vhost
    commands = list(_commands(user, made, vhost))
    if as_json:
        printed = {"definitions": made} if what == "definitions" else {"commands": commands}
        typer.echo(json.dumps({"user": user.name, "password": user.password, **printed}))
        return
    typer.echo(json.dumps(made, indent=2) if what == "definitions" else "\n".join(commands))
    typer.echo(f"The password of {user.name} is {user.password}", err=True)


def _commands(user: User, made: dict[str, Any], vhost: str) -> Iterator[str]:
    """Commands with the effect of the definitions; the exchanges have to exist."""
    # Through its input: every user of the machine can read the arguments of a process.
    yield f"printf %s {shlex.quote(user.password)} | rabbitmqctl add_user {user.name}"
    yield shlex.join(
        ["rabbitmqctl", "set_user_limits", user.name, json.dumps(user.bounds.limits())]
    )
    [row] = made["permissions"]
    rights = [row[name] for name in ("configure", "write", "read")]
    yield shlex.join(["rabbitmqctl", "set_permissions", "--vhost", vhost, user.name, *rights])
    for row in made["topic_permissions"]:
        words = [user.name, row["exchange"], row["write"], row["read"]]
        yield shlex.join(["rabbitmqctl", "set_topic_permissions", "--vhost", vhost, *words])
    # No command declares a queue or binds one.
    others = json.dumps({section: made[section] for section in ("queues", "policies", "bindings")})
    yield f"printf %s {shlex.quote(others)} | rabbitmqctl import_definitions"
