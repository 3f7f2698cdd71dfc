"""The end of a replica that Serve stops: what it has ends or is given back without a strike."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from worker.entrance import Entrance
from worker.live_calls import LiveCalls

log = structlog.get_logger()

#: What the rest of a replica's end takes at most, in seconds: rows that are given back leave vLLM,
#: the door closes, and Serve looks once more whether calls run.
END_SECONDS = 10
#: How often it is looked whether anything is left, in seconds.
_LOOK_SECONDS = 0.1


class Drain:
    """Belongs to the event loop of the replica."""

    def __init__(self, entrance: Entrance, live: LiveCalls, *, seconds: float) -> None:
        """What runs may go on for `seconds` once the drain has begun."""
        self._entrance = entrance
        self._live = live
        self._seconds = seconds
        #: Whether this replica takes nothing any more.
        self.has_begun = False

    async def run(self) -> None:
        """Return when nothing is left that could end in time.

        Rows that still have a seat then leave it, and have no result.
        """
        self.has_begun = True
        given_back = self._entrance.close()
        self._live.close()
        log.info("replica.drains", rows=self._entrance.rows, live_calls=self._live.running)
        try:
            async with asyncio.timeout(self._seconds):
                while self._entrance.rows or self._live.running:  # noqa: ASYNC110  # of two owners
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            given_back += self._entrance.give_back()
        log.info("replica.drained", given_back=given_back, live_calls=self._live.running)


def before_stop(act: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Have Serve wait for this, in the running event loop, before it stops the replica.

    Serve has no public way: it calls a destructor, but only once all calls have ended, and kills a
    replica whose calls do not end in time.
    """
    from ray.serve._private.replica import Replica

    loop = asyncio.get_running_loop()
    # There is one of them in each process.
    stop: Any = Replica._perform_graceful_shutdown  # noqa: SLF001  # see above

    async def act_and_stop(replica: Any) -> None:
        try:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(act(), loop))
        finally:
            await stop(replica)

    Replica._perform_graceful_shutdown = act_and_stop  # type: ignore[method-assign]  # noqa: SLF001
