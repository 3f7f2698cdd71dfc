"""Dead letters for a command: the broker that has them, and how they are shown."""

import asyncio
import base64
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from shared.bus.connection import Bus
from shared.bus.dead_letters import DeadLetter
from shared.errors import SetupError, TransientError

T = TypeVar("T")


def with_bus(work: Callable[[Bus], Awaitable[T]], run_dir: Path, url: str | None) -> T:
    """What `work` gives on the RabbitMQ that was named, or the run directory's own.

    Raises SetupError, also where RabbitMQ does not answer.
    """
    from cli.fleet.running import amqp_url

    found = amqp_url(run_dir, url)

    async def run() -> T:
        bus = Bus(found)
        try:
            return await work(bus)
        except TransientError as error:
            raise SetupError(
                f"The fleet's RabbitMQ failed ({error}). Messages that it did not confirm are "
                "still among the dead letters."
            ) from error
        finally:
            await bus.close()

    return asyncio.run(run())


def to_json(letter: DeadLetter) -> dict[str, Any]:
    """The letter without its body, as JSON values."""
    fields = {**letter._asdict(), "reasons": [reason._asdict() for reason in letter.reasons]}
    del fields["body"]
    return {name: _plain(value) for name, value in fields.items()}


def to_text(body: bytes) -> str:
    """The bytes as text; bytes that are not UTF-8 in base64, after `base64:`."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return f"base64:{base64.b64encode(body).decode()}"


def _plain(value: Any) -> Any:
    """An AMQP value as a JSON value."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case bytes() | bytearray():
            return to_text(bytes(value))
        case datetime():
            return value.isoformat()
        case list() | tuple():
            return [_plain(one) for one in value]
        case dict():
            return {str(name): _plain(one) for name, one in value.items()}
        case _:
            return str(value)
