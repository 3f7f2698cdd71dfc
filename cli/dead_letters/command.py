"""`batchyard dead-letters`: messages that were refused, to be read, replayed or dropped."""

import json
from collections.abc import Collection
from contextlib import aclosing
from pathlib import Path
from typing import Annotated

import typer
from aio_pika.abc import AbstractIncomingMessage

from cli.dead_letters.letters import to_json, to_text, with_bus
from cli.dead_letters.rows import app as dead_rows
from cli.options import (
    HERE,
    All,
    AsJson,
    Ids,
    RunDir,
    echo_details,
    echo_done,
    echo_table,
    require_choice,
    time_text,
)
from cli.trail import told
from shared.bus.connection import Bus
from shared.bus.dead_letters import DeadLetter
from shared.bus.letters import Act, each, first, held
from shared.bus.letters import replay as send_again
from shared.errors import NotFoundError

app = typer.Typer(
    no_args_is_help=True,
    help="Messages that were refused, with the reasons. While one of these commands runs, no other "
    "one sees the letters that it holds.",
)

app.add_typer(dead_rows, name="rows")

AmqpUrl = Annotated[
    str | None,
    typer.Option(
        envvar="BATCHYARD_AMQP_URL",
        help="The fleet's RabbitMQ, with the dispatcher's login, unless it is in the folder.",
        show_envvar=True,
    ),
]
_LIMIT = 100


@app.command()
def ls(
    *,
    limit: Annotated[
        int, typer.Option(min=1, help="Show at most this many, the oldest first.")
    ] = _LIMIT,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    run_dir: RunDir = HERE,
    amqp_url: AmqpUrl = None,
    as_json: AsJson = False,
) -> None:
    """List dead letters; nothing is removed."""
    letters = with_bus(lambda bus: first(bus, limit, tenant=tenant), run_dir, amqp_url)
    if as_json:
        typer.echo(json.dumps([to_json(letter) for letter in letters]))
        return
    rows = [("ID", "SINCE", "TENANT", "MESSAGE", "BY", "CODE", "BYTES", "REASON")]
    rows += [
        (
            letter.id,
            time_text(letter.at),
            letter.user or "-",
            str(letter.properties.get("message_id", "-"))[:40],
            letter.by,
            letter.reasons[0].code,
            str(letter.size),
            letter.reasons[0].message[:80],
        )
        for letter in letters
    ]
    echo_table(rows)


@app.command()
def show(
    letter_id: Annotated[str, typer.Argument(help="The id, as `ls` shows it.")],
    *,
    body: Annotated[
        bool, typer.Option("--body", help="Print the body too; it may hold prompts.")
    ] = False,
    run_dir: RunDir = HERE,
    amqp_url: AmqpUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show one letter with all reasons, properties and headers; it is not removed."""

    async def find(bus: Bus) -> DeadLetter | None:
        async with aclosing(held(bus)) as letters:
            async for _, letter in letters:
                if letter.id == letter_id:
                    return letter._replace(size=len(letter.body))
        return None

    letter = with_bus(find, run_dir, amqp_url)
    if letter is None:
        raise _unknown([letter_id])
    details = to_json(letter) | ({"body": to_text(letter.body)} if body else {})
    echo_details(details, as_json=as_json)


@app.command()
def replay(
    letter_ids: Ids = None,
    *,
    every: All = False,
    run_dir: RunDir = HERE,
    amqp_url: AmqpUrl = None,
    as_json: AsJson = False,
) -> None:
    """Publish messages again as they were sent, and remove them once the broker confirms them."""
    wanted = _wanted(letter_ids, every=every)

    async def send(bus: Bus, message: AbstractIncomingMessage, letter: DeadLetter) -> None:
        await send_again(bus, message, letter)
        act.tenant = letter.user
        act.done(letter.id)

    with told(run_dir, "dead_letter.replayed") as act:
        done = _for_each(wanted, send, run_dir, amqp_url)
    _report("replayed", done, as_json=as_json)


@app.command()
def drop(
    letter_ids: Ids = None,
    *,
    every: All = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    run_dir: RunDir = HERE,
    amqp_url: AmqpUrl = None,
    as_json: AsJson = False,
) -> None:
    """Remove messages permanently."""
    wanted = _wanted(letter_ids, every=every)
    if not yes:
        what = "all dead letters" if wanted is None else f"{len(wanted)} dead letters"
        typer.confirm(f"Remove {what} permanently?", abort=True, err=True)

    async def remove(_: Bus, message: AbstractIncomingMessage, letter: DeadLetter) -> None:
        await message.ack()
        act.tenant = letter.user
        act.done(letter.id)

    with told(run_dir, "dead_letter.dropped") as act:
        done = _for_each(wanted, remove, run_dir, amqp_url)
    _report("dropped", done, as_json=as_json)


def _for_each(
    wanted: Collection[str] | None, act: Act, run_dir: Path, amqp_url: str | None
) -> list[str]:
    """The ids of the letters that were acted on. Raises NotFoundError if one is not there."""

    async def do(bus: Bus) -> list[str]:
        await bus.connect()
        return await each(bus, wanted, act)

    done = with_bus(do, run_dir, amqp_url)
    if missing := sorted(set(wanted or ()) - set(done)):
        raise _unknown(missing)
    return done


def _wanted(letter_ids: list[str] | None, *, every: bool) -> Collection[str] | None:
    require_choice(letter_ids, every=every, shown_by="batchyard dead-letters ls")
    return None if every else set(letter_ids or ())


def _report(what: str, done: list[str], *, as_json: bool) -> None:
    echo_done(what, done, nothing="There are no dead letters.", as_json=as_json)


def _unknown(letter_ids: list[str]) -> NotFoundError:
    return NotFoundError(f"There is no dead letter {', '.join(letter_ids)}.")
