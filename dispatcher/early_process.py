"""Early files in a process of their own, from the side of the dispatcher.

What they read, check and send keeps several threads busy. In the dispatcher's process, its event
loop would wait for Python's lock after each of its steps, and with it every small batch.
"""

import asyncio
import pickle
import socket
import struct
import sys
import time
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import count
from typing import NamedTuple

import structlog

from dispatcher.hurry import Hurry
from dispatcher.result_files import EarlyOutput
from shared.lifecycle import Event
from shared.state import BatchRecord
from shared.tasks import end, see_through

log = structlog.get_logger()

_LENGTH = struct.Struct("!Q")
#: After one that has ended by itself, another one is started so much later.
_PAUSE_SECONDS = 5.0
#: What one may take to drop its files when it is not needed any more; then it is killed.
STOP_SECONDS = 8.0


class Take(NamedTuple):
    """To the process: give up the early file of this batch, whole, if there is one."""

    number: int
    record: BatchRecord
    event: Event


class Hurried(NamedTuple):
    """To the process: whether somebody is in a hurry."""

    is_somebody: bool


class Taken(NamedTuple):
    """From the process: what it has for a `Take`."""

    number: int
    output: EarlyOutput | None


class EarlyProcess:
    """`EarlyFiles` of another process. While there is none, no file is there early."""

    def __init__(self, hurry: Hurry) -> None:
        """None of its files grows while somebody is in a `hurry`, for a short time."""
        self._hurry = hurry
        self._numbers = count()
        self._writer: StreamWriter | None = None
        self._taking: dict[int, asyncio.Future[EarlyOutput | None]] = {}

    async def run(self) -> None:
        """Have the process until cancelled, and another one after it if it dies."""
        while True:
            began = time.monotonic()
            try:
                await self._have_one()
            except OSError as error:
                log.error("early_files.not_started", reason=error.strerror)  # noqa: TRY400  # it says all
            else:
                log.error("early_files.died", after_seconds=round(time.monotonic() - began, 1))
            await asyncio.sleep(_PAUSE_SECONDS)

    async def take(self, record: BatchRecord, event: Event) -> EarlyOutput | None:
        """As `EarlyFiles.take`."""
        if self._writer is None or record.number("slices_total") <= 1:
            # No small batch has one, and none waits for the answer.
            return None
        number = next(self._numbers)
        taken: asyncio.Future[EarlyOutput | None] = asyncio.get_running_loop().create_future()
        self._taking[number] = taken
        send(self._writer, Take(number, record, event))
        try:
            return await taken
        finally:
            del self._taking[number]

    async def _have_one(self) -> None:
        """Start one, and talk with it until it ends. Raises OSError."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = await asyncio.create_subprocess_exec(
                    sys.executable,
                    "-m",
                    "dispatcher.early_server",
                    str(theirs.fileno()),
                    stdin=DEVNULL,
                    pass_fds=[theirs.fileno()],
                )
            except BaseException:
                ours.close()
                raise
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        self._writer = writer
        telling = asyncio.create_task(self._tell_of_hurry(writer))
        try:
            async for message in messages(reader):
                self._hear(message)
        finally:
            self._writer = None
            for taken in self._taking.values():
                if not taken.done():
                    taken.set_result(None)
            # It ends when it hears no more from here.
            writer.close()
            await see_through(_ended(process, telling), seconds=STOP_SECONDS)

    def _hear(self, message: object) -> None:
        assert isinstance(message, Taken)  # noqa: S101  # it says nothing else
        taken = self._taking.get(message.number)
        if taken is not None and not taken.done():
            taken.set_result(message.output)

    async def _tell_of_hurry(self, writer: StreamWriter) -> None:
        while True:
            await self._hurry.somebody()
            send(writer, Hurried(is_somebody=True))
            await self._hurry.nobody()
            send(writer, Hurried(is_somebody=False))


async def _ended(process: Process, telling: "asyncio.Task[None]") -> None:
    """Wait for its end, and kill it after a time."""
    await end(telling)
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await process.wait()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def send(writer: StreamWriter, message: object) -> None:
    """Send it soon; what is sent to an end that is gone is lost."""
    body = pickle.dumps(message)
    writer.write(_LENGTH.pack(len(body)) + body)


async def messages(reader: StreamReader) -> AsyncIterator[object]:
    """What the other end sends, until it is gone."""
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            [length] = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
            # Both ends are ours.
            yield pickle.loads(await reader.readexactly(length))  # noqa: S301
