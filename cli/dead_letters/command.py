"""`batchyard dead-letters`: messages that could not be taken, to be read, replayed or dropped."""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Collection
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from aio_pika.abc import AbstractIncomingMessage

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
from shared.bus.connection import Bus
from shared.bus.dead_letters import DeadLetter, read, replay_headers
from shared.bus.topology import DEAD_QUEUE, SUBMIT_EXCHANGE
from shared.errors import NotFoundError, SetupError, TransientError

T = TypeVar("T")

app = typer.Typer(
    no_args_is_help=True,
    help="Messages that could not be taken, with the reasons. While one of these commands runs, no "
    "other one sees the letters that it holds.",
)

app.add_typer(dead_rows, name="rows")

AmqpUrl = Annotated[
    str | None,
    typer.Option(
        envvar="BATCHYARD_AMQP_URL",
        help="The fleet's RabbitMQ, with its dispatcher's login, where it is not in the folder.",
        show_envvar=True,
    ),
]
_LIMIT = 100


@app.command()
def ls(
    *,
    limit: Annotated[int, typer.Option(min=1, help="At most so many, the oldest first.")] = _LIMIT,
    tenant: Annotated[str | None, typer.Option(help="Only this one's.")] = None,
    run_dir: RunDir = HERE,
    amqp_url: AmqpUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show what lies there; nothing is removed."""

    async def collect(bus: Bus) -> list[DeadLetter]:
        found: list[DeadLetter] = []
        async with bus.holding(DEAD_QUEUE) as messages:
            async for message in messages:
                letter = read(message, service_user=bus.user)
                if tenant in (None, letter.user):
                    # A body may have a megabyte, and none is shown here.
                    found.append(letter._replace(body=b"", size=len(letter.body)))
                if len(found) == limit:
                    break
        return found

    letters = _with_bus(collect, run_dir, amqp_url)
    if as_json:
        typer.echo(json.dumps([_shown(letter) for letter in letters]))
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
        bool, typer.Option("--body", help="Print the body too: it may hold prompts.")
    ] = False,
    run_dir: RunDir = HERE,
    amqp_url: AmqpUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show one with all reasons, properties and headers; it is not removed."""

    async def find(bus: Bus) -> DeadLetter | None:
        async with bus.holding(DEAD_QUEUE) as messages:
            async for message in messages:
                letter = read(message, service_user=bus.user)
                if letter.id == letter_id:
                    return letter._replace(size=len(letter.body))
        return None

    letter = _with_bus(find, run_dir, amqp_url)
    if letter is None:
        raise _unknown([letter_id])
    told = _shown(letter) | ({"body": _text(letter.body)} if body else {})
    echo_details(told, as_json=as_json)


@app.command()
def replay(
    letter_ids: Ids = None,
    *,
    every: All = False,
    run_dir: RunDir = HERE,
    amqp_url: AmqpUrl = None,
    as_json: AsJson = False,
) -> None:
    """Publish messages again as they were sent, and remove them once the broker has them."""
    wanted = _wanted(letter_ids, every=every)

    async def send(bus: Bus, message: AbstractIncomingMessage, letter: DeadLetter) -> None:
        told = letter.properties
        names = ("message_id", "type", "content_type", "content_encoding", "correlation_id")
        await bus.publish(
            # Where all batch messages go, also those that came to our queue by another way.
            SUBMIT_EXCHANGE,
            letter.routing_key,
            letter.body,
            properties={
                **{name: told[name] for name in names if name in told},
                "user_id": bus.user,
            },
            headers=replay_headers(letter),
            mandatory=True,
        )
        await message.ack()

    _report("replayed", _for_each(wanted, send, run_dir, amqp_url), as_json=as_json)


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
    """Remove messages for ever."""
    wanted = _wanted(letter_ids, every=every)
    if not yes:
        what = "all dead letters" if wanted is None else f"{len(wanted)} dead letters"
        typer.confirm(f"Remove {what} for ever?", abort=True, err=True)

    async def remove(_: Bus, message: AbstractIncomingMessage, __: DeadLetter) -> None:
        await message.ack()

    _report("dropped", _for_each(wanted, remove, run_dir, amqp_url), as_json=as_json)


Act = Callable[[Bus, AbstractIncomingMessage, DeadLetter], Awaitable[None]]


def _for_each(
    wanted: Collection[str] | None, act: Act, run_dir: Path, amqp_url: str | None
) -> list[str]:
    """The ids of those that it was done to. Raises NotFoundError if one is not there."""

    async def work(bus: Bus) -> list[str]:
        await bus.connect()
        done: list[str] = []
        async with bus.holding(DEAD_QUEUE) as messages:
            async for message in messages:
                letter = read(message, service_user=bus.user)
                # What dies again meanwhile stays: it would come round for ever.
                if (wanted is None or letter.id in wanted) and letter.id not in done:
                    await act(bus, message, letter)
                    done.append(letter.id)
        return done

    done = _with_bus(work, run_dir, amqp_url)
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


def _with_bus(work: Callable[[Bus], Awaitable[T]], run_dir: Path, url: str | None) -> T:
    from cli.fleet.running import amqp_url

    found = amqp_url(run_dir, url)

    async def run() -> T:
        bus = Bus(found)
        try:
            return await work(bus)
        except TransientError as error:
            raise SetupError(
                f"The fleet's RabbitMQ did not do it ({error}). What was not confirmed still lies "
                "among the dead letters."
            ) from error
        finally:
            await bus.close()

    return asyncio.run(run())


def _shown(letter: DeadLetter) -> dict[str, Any]:
    told = {**letter._asdict(), "reasons": [reason._asdict() for reason in letter.reasons]}
    del told["body"]
    return {name: _plain(value) for name, value in told.items()}


def _plain(value: Any) -> Any:
    """AMQP's values as JSON's."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case bytes() | bytearray():
            return _text(bytes(value))
        case datetime():
            return value.isoformat()
        case list() | tuple():
            return [_plain(one) for one in value]
        case dict():
            return {str(name): _plain(one) for name, one in value.items()}
        case _:
            return str(value)


def _text(body: bytes) -> str:
    """As text, or with `base64:` before it where it is none."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(body).decode()}"
