"""Duties: work that may be repeated or abandoned at any point. A failed duty is retried."""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial

import structlog

from shared.errors import TransientError
from shared.tasks import end

log = structlog.get_logger()

Duty = Callable[[], Awaitable[object]]

_MAX_PAUSE_SECONDS = 60.0
#: Shorter, because an outage ends for all duties at once.
_MAX_OUTAGE_PAUSE_SECONDS = 4.0


class Duties:
    """Runs one duty at a time for each batch or lane. After a failure, the next one waits."""

    def __init__(self) -> None:
        self._running: dict[str, asyncio.Task[None]] = {}
        self._failures: defaultdict[str, int] = defaultdict(int)

    def start(
        self,
        name: str,
        duty: Callable[[str], Awaitable[None]],
        slots: AbstractAsyncContextManager[object],
    ) -> None:
        """Run the duty for this batch or lane once it has a slot, unless one is under way."""
        if name not in self._running:
            self._running[name] = asyncio.create_task(self._run(name, duty, slots))

    async def end(self) -> None:
        """Cancel all running duties."""
        await end(*self._running.values())
        # A task that had not begun could not remove itself.
        self._running.clear()

    async def _run(
        self,
        name: str,
        duty: Callable[[str], Awaitable[None]],
        slots: AbstractAsyncContextManager[object],
    ) -> None:
        try:
            async with slots:
                error = await survive(partial(duty, name), duty.__name__, of=name)
            if error is None:
                self._failures.pop(name, None)
            else:
                self._failures[name] += 1
                await asyncio.sleep(retry_pause_seconds(error, self._failures[name]))
        finally:
            del self._running[name]


async def repeat(duty: Duty, *, every_seconds: float) -> None:
    """Run the duty again and again until cancelled."""
    while True:
        await survive(duty, getattr(duty, "__name__", ""))
        await asyncio.sleep(every_seconds)


async def survive(duty: Duty, name: str, **fields: str) -> Exception | None:
    """Run the duty once. Log and return any exception."""
    try:
        await duty()
    except TransientError as error:
        log.warning(
            "dispatcher.duty_broke", duty=name, code="unavailable", reason=str(error), **fields
        )
        return error
    except Exception as error:  # the loops must outlive a bug: other batches depend on them
        code = "internal_error"
        log.exception("dispatcher.duty_broke", duty=name, code=code, **fields)
        return error
    return None


def retry_pause_seconds(error: Exception, failures: int) -> float:
    """How long a duty waits after so many failures in a row, the last of them `error`."""
    is_outage = isinstance(error, TransientError)
    return float(min(_MAX_OUTAGE_PAUSE_SECONDS if is_outage else _MAX_PAUSE_SECONDS, 2.0**failures))
