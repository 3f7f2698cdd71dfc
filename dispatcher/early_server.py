"""The process that has early files; see `dispatcher/early_process.py`.

python -m dispatcher.early_server FD
"""

import asyncio
import signal
import socket
import sys
from asyncio import StreamWriter
from contextlib import ExitStack

from dispatcher.early_files import EarlyFiles
from dispatcher.early_process import (
    ALIVE_SECONDS,
    STOP_SECONDS,
    Alive,
    Hurried,
    Take,
    Taken,
    messages,
    send,
)
from dispatcher.hurry import Hurry
from shared.interpreter import prepare_to_serve
from shared.monitoring import log
from shared.settings import StoreSettings, open_storage
from shared.state import State
from shared.tasks import end


async def serve(files: EarlyFiles, hurry: Hurry, connection: socket.socket) -> None:
    """Begin files, and give up those that are asked for, until the other end is gone."""
    reader, writer = await asyncio.open_unix_connection(sock=connection)
    living = asyncio.create_task(_live(writer))
    running = asyncio.create_task(files.run())
    taking = set[asyncio.Task[None]]()
    try:
        with ExitStack() as hurrying:
            async for message in messages(reader):
                match message:
                    case Hurried(is_somebody=True):
                        hurrying.enter_context(hurry.here())
                    case Hurried():
                        hurrying.close()
                    case Take():
                        task = asyncio.create_task(_take(files, message, writer))
                        taking.add(task)
                        task.add_done_callback(taking.discard)
                    case _:
                        raise TypeError(f"it takes no {type(message).__name__}")
    finally:
        await end(living, running, *taking, patience_seconds=STOP_SECONDS)
        writer.close()


async def _live(writer: StreamWriter) -> None:
    while True:
        send(writer, Alive())
        await asyncio.sleep(ALIVE_SECONDS)


async def _take(files: EarlyFiles, asked: Take, writer: StreamWriter) -> None:
    output = None
    try:
        output = await files.take(asked.record, asked.event)
    finally:
        send(writer, Taken(asked.number, output))


async def _main(settings: StoreSettings, connection: socket.socket) -> None:
    state = State(settings.redis_url.get_secret_value())
    storage = open_storage(settings)
    hurry = Hurry()
    try:
        await serve(EarlyFiles(state, storage, hurry), hurry, connection)
    finally:
        storage.close()
        await state.close()


def main() -> None:
    """Serve the dispatcher that has started this process, until it is gone."""
    # Whoever ends the dispatcher may tell its whole group. Files are dropped when it is gone.
    for signum in (signal.SIGINT, signal.SIGTERM):
        signal.signal(signum, signal.SIG_IGN)
    settings = StoreSettings()
    log.configure("early-files", settings.log_level)
    prepare_to_serve()
    asyncio.run(_main(settings, socket.socket(fileno=int(sys.argv[1]))))


if __name__ == "__main__":
    main()
