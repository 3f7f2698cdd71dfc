"""`python -m dispatcher`: settings from the environment, stop on the first signal."""

import asyncio
import signal
import sys

from pydantic import ValidationError

from dispatcher.app import run
from dispatcher.settings import DispatcherSettings
from shared.errors import BatchyardError
from shared.interpreter import prepare_to_serve
from shared.monitoring import log
from shared.tracing import spans


async def _main(settings: DispatcherSettings) -> None:
    stopping = asyncio.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(signum, stopping.set)
    await run(settings, stopping)


def main() -> int:
    """Exit code 2 for a setting or service that the operator must fix."""
    try:
        settings = DispatcherSettings()
    except ValidationError as error:
        sys.stderr.write(f"dispatcher: {error}\n")
        return 2
    log.configure("dispatcher", settings.log_level)
    try:
        spans.start("dispatcher")
        prepare_to_serve()
        asyncio.run(_main(settings))
    except BatchyardError as error:
        sys.stderr.write(f"dispatcher: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
