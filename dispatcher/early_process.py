"""Early files in a process of their own, from the side of the dispatcher.

What they read, check and send keeps several threads busy. In the dispatcher's process, its event
loop would wait for Python's lock after each of its steps, and with it every small batch.
"""

import asyncio
import pickle
import socket
import struct
import sys
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import count
from typing import NamedTuple

import structlog

from dispatcher.early_files import may_grow
from dispatcher.hurry import Hurry
from dispatcher.result_files import EarlyOutput
from shared.errors import TransientError
from shared.lifecycle import Event, Status
from shared.state import BatchRecord, State
from shared.tasks import end, see_through

log = structlog.get_logger()

_LENGTH = struct.Struct("!Q")
#: Takes the descriptor of its end of the connection.
_COMMAND = (sys.executable, "-m", "dispatcher.early_server")
#: How often is looked whether one is needed, and for how many batches that are new.
_LOOK_SECONDS, _MET = 0.5, 100
#: After one that has ended by itself, another one is started so much later.
_PAUSE_SECONDS = 5.0
#: What one may take to drop its files when it is not needed any more; then it is killed.
STOP_SECONDS = 8.0
#: How often one says that it lives, and after which time without a word it is killed, because ends
#: of batches may wait for it. One that starts has longer: none waits.
ALIVE_SECONDS = 1.0
_SILENT_SECONDS, _START_SECONDS = 15.0, 120.0


class Take(NamedTuple):
    """To the process: give up the early file of this batch, whole, if there is one."""

    number: int
    record: BatchRecord
    event: Event


class Hurried(NamedTuple):
    """To the process: whether somebody is in a hurry."""

    is_somebody: bool


class Alive(NamedTuple):
    """From the process: it has begun, and may have files; said again and again."""


class Taken(NamedTuple):
    """From the process: what it has for a `Take`."""

    number: int
    output: EarlyOutput | None


class EarlyProcess:
    """`EarlyFiles` of another process. While there is none, no file is there early."""

    def __init__(self, state: State, hurry: Hurry) -> None:
        """None of its files grows while somebody is in a `hurry`, for a short time."""
        self._state = state
        self._hurry = hurry
        self._numbers = count()
        #: To one that has begun.
        self._writer: StreamWriter | None = None
        self._taking: dict[int, asyncio.Future[EarlyOutput | None]] = {}
        #: Batches that run and need none.
        self._known: set[str] = set()

    async def run(self) -> None:
        """Have the process from the first batch on that may need it, until cancelled.

        There is another one after it if it dies.
        """
        while not await self._is_needed():  # noqa: ASYNC110  # Redis is asked
            await asyncio.sleep(_LOOK_SECONDS)
        while True:
            try:
                process, reader, writer = await _started()
            except OSError as error:
                log.error("early_files.not_started", reason=error.strerror)  # noqa: TRY400  # it says all
            else:
                await self._talk(process, reader, writer)
                log.error("early_files.died", exit_code=process.returncode)
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

    async def _is_needed(self) -> bool:
        """Whether a batch runs that may be large; one with a single slice is not."""
        try:
            running = await self._state.batches.in_status(Status.IN_PROGRESS)
            self._known.intersection_update(running)
            new = [id_ for id_ in running if id_ not in self._known][:_MET]
            records = await self._state.batches.many(new) if new else []
        except TransientError:
            # Others say so.
            return False
        is_needed = any(map(may_grow, records))
        if not is_needed:
            self._known.update(new)
        return is_needed

    async def _talk(self, process: Process, reader: StreamReader, writer: StreamWriter) -> None:
        """Until it ends or says nothing for too long, or until cancelled, which ends it."""
        telling = asyncio.create_task(self._tell_of_hurry(writer))
        try:
            async with asyncio.timeout(_START_SECONDS) as limit:
                async for message in messages(reader):
                    limit.reschedule(asyncio.get_running_loop().time() + _SILENT_SECONDS)
                    self._writer = writer
                    self._hear(message)
        except TimeoutError:
            log.error("early_files.silent")  # noqa: TRY400  # there is no more to it
        except BaseException:
            # One that has not begun has no files to drop.
            seconds = 0.0 if self._writer is None else STOP_SECONDS
            await see_through(self._end(process, writer, telling, seconds), seconds=seconds)
            raise
        await self._end(process, writer, telling, 0.0)

    async def _end(
        self, process: Process, writer: StreamWriter, telling: "asyncio.Task[None]", seconds: float
    ) -> None:
        """Say no more to it, wait so long for its end, and then kill it."""
        self._writer = None
        for taken in self._taking.values():
            if not taken.done():
                taken.set_result(None)
        # It drops its files and ends when it hears that nobody is there.
        writer.close()
        await end(telling)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await process.wait()
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _hear(self, message: object) -> None:
        match message:
            case Alive():
                pass
            case Taken(number=number, output=output):
                taken = self._taking.get(number)
                if taken is not None and not taken.done():
                    taken.set_result(output)
            case _:
                raise TypeError(f"it says no {type(message).__name__}")

    async def _tell_of_hurry(self, writer: StreamWriter) -> None:
        while True:
            await self._hurry.somebody()
            send(writer, Hurried(is_somebody=True))
            await self._hurry.nobody()
            send(writer, Hurried(is_somebody=False))


async def _started() -> tuple[Process, StreamReader, StreamWriter]:
    """The process, and what it says and is told. Raises OSError."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = await asyncio.create_subprocess_exec(
            *_COMMAND, str(theirs.fileno()), stdin=DEVNULL, pass_fds=[theirs.fileno()]
        )
        try:
            reader, writer = await asyncio.open_unix_connection(sock=ours.dup())
        except BaseException:
            process.kill()
            await process.wait()
            raise
    return process, reader, writer


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
