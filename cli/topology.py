"""`batchyard topology`: what RabbitMQ needs, for operators who create it by hand."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from shared.bus import topology
from shared.bus.topology import MAX_MESSAGE_BYTES, TENANT_EVENTS, TENANT_QUEUES, Bounds, User
from shared.errors import SetupError

#: No definitions set it.
_MESSAGE_SIZE = f"setting   max_message_size = {MAX_MESSAGE_BYTES}, in rabbitmq.conf"


def run(
    tenant: Annotated[
        list[str] | None, typer.Option(help="Include this tenant's rights; repeatable.")
    ] = None,
    queue: Annotated[
        list[str] | None,
        typer.Option(help="Give each tenant sub.TENANT.NAME and reply.TENANT.NAME; repeatable."),
    ] = None,
    event: Annotated[
        list[str] | None,
        typer.Option(help="Send these events, such as batch.completed, to sub.*; repeatable."),
    ] = None,
    service_user: Annotated[
        str, typer.Option(help="The user with which gateway and dispatcher log in.")
    ] = "batchyard",
    *,
    any_queue: Annotated[
        bool, typer.Option("--any-queue", help="Let tenants declare and bind queues themselves.")
    ] = False,
    definitions: Annotated[
        bool, typer.Option("--definitions", help="Print JSON for `import_definitions`.")
    ] = False,
    only_logins: Annotated[
        bool,
        typer.Option(
            "--only-logins",
            help="Only users with their rights, queues and bindings, nothing else.",
        ),
    ] = False,
    may_declare: Annotated[
        bool,
        typer.Option(
            "--may-declare", help="Also allow gateway and dispatcher to create what is missing."
        ),
    ] = False,
    passwords: Annotated[
        Path | None,
        typer.Option(
            help="A JSON file with passwords by user; their hashes are included. Users who are not "
            "in it have to exist before the import."
        ),
    ] = None,
) -> None:
    """Show what RabbitMQ needs: exchanges, queues, bindings, policies, rights and limits."""
    known = _passwords(passwords)
    bounds = Bounds(
        queues=None if any_queue else tuple(queue or TENANT_QUEUES),
        events=tuple(event or TENANT_EVENTS),
    )
    users = [
        _user(service_user, known, tenant=False, may_declare=may_declare),
        *(replace(_user(name, known, tenant=True), bounds=bounds) for name in tenant or ()),
    ]
    if unknown := known.keys() - {user.name for user in users}:
        raise SetupError(
            f"{passwords}: it has passwords of {', '.join(sorted(unknown))}, who are "
            "neither the service user nor named by --tenant."
        )
    made = topology.definitions(users)
    if only_logins:
        made = topology.logins(users)
    if definitions:
        typer.echo(json.dumps(made, indent=2))
        return
    for line in (*_lines(made), *_limits(users), _MESSAGE_SIZE):
        typer.echo(line)


def _user(name: str, known: Mapping[str, str], *, tenant: bool, may_declare: bool = False) -> User:
    exists = name not in known
    return User(name, known.get(name, ""), tenant=tenant, exists=exists, may_declare=may_declare)


def _passwords(path: Path | None) -> dict[str, str]:
    if path is None:
        return {}
    try:
        known = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise SetupError(f"--passwords {path}: {error}") from error
    if not isinstance(known, dict) or not all(isinstance(text, str) for text in known.values()):
        raise SetupError(
            f"--passwords {path}: it has to be a JSON object of user names and passwords."
        )
    return known


def _lines(made: dict[str, Any]) -> Iterator[str]:
    for row in made.get("exchanges", []):
        yield f"exchange  {row['name']:<18} {row['type']}, durable"
    for row in made.get("queues", []):
        arguments = " ".join(f"{name}={value}" for name, value in row["arguments"].items())
        yield f"queue     {row['name']:<18} durable, {arguments}"
    for row in made.get("bindings", []):
        yield f"binding   {row['source']:<18} {row['routing_key']} -> {row['destination']}"
    for row in made.get("policies", []):
        yield f"policy    {row['name']:<18} {row['pattern']} {json.dumps(row['definition'])}"
    for row in made["permissions"]:
        rights = [row["user"], row["configure"], row["write"], row["read"]]
        yield _ctl("set_permissions", rights)
    for row in made["topic_permissions"]:
        rights = [row["user"], row["exchange"], row["write"], row["read"]]
        yield _ctl("set_topic_permissions", rights)


def _limits(users: Sequence[User]) -> Iterator[str]:
    for user in users:
        if user.tenant:
            yield _ctl("set_user_limits", [user.name, json.dumps(user.bounds.limits())])


def _ctl(command: str, words: Sequence[str]) -> str:
    return f"rights    rabbitmqctl {command} {shlex.join(words)}"
