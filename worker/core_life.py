"""Whether a replica has a core that lives, and who calls it: another core may take its place."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

from shared.ordering.work import Work
from shared.presence import Presence
from worker.engine_errors import EngineUnavailableError, Results

#: A core that has answered nothing and dies within so many seconds is no reason for a third one:
#: the replica, or its machine, may be the cause.
SOON_SECONDS = 60.0


@dataclass(eq=False, slots=True)
class _Parked:
    """A call that waits for a core."""

    #: Those of its batches that have not been withdrawn.
    batch_ids: set[str]
    has_news: asyncio.Event = field(default_factory=asyncio.Event)


class CoreLife:
    """Belongs to the event loop of the replica. Begins with a core that lives."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, *, is_only_one: bool = True
    ) -> None:
        """Where this is not the only replica, calls do not wait here: others take them."""
        self._clock = clock
        self._is_only_one = is_only_one
        self._began_at = clock()
        self._calls = Presence()
        self._parked: set[_Parked] = set()
        #: Whether another core starts.
        self.is_coming = False
        self._is_over = False

    def may_restart(self, *, has_answered: bool) -> bool:
        """Whether another core may take the place of one that has died now."""
        return has_answered or self._clock() - self._began_at >= SOON_SECONDS

    def require_hope(self) -> None:
        """Raise EngineUnavailableError if no other core will come, whatever still lives here."""
        if self._is_over:
            raise EngineUnavailableError("the engine is about to restart")

    async def wait(self, batch_ids: Collection[str]) -> AbstractSet[str]:
        """Wait for a core that starts, for as long as any of these batches is to be computed.

        Returns those that are. A call without any waits for the core itself. Raises
        EngineUnavailableError if no core will come, or other replicas have theirs.
        """
        if self.is_coming and not self._is_only_one:
            raise EngineUnavailableError("the engine restarts, and there are others")
        call = _Parked(set(batch_ids))
        self._parked.add(call)
        try:
            while self.is_coming and (call.batch_ids or not batch_ids):
                call.has_news.clear()
                await call.has_news.wait()
        finally:
            self._parked.discard(call)
        self.require_hope()
        return call.batch_ids

    def withdraw(self, batch_id: str) -> None:
        """Let no row of the batch enter vLLM for which a call waits here."""
        for call in self._parked:
            call.batch_ids.discard(batch_id)
            call.has_news.set()

    def used(self) -> AbstractContextManager[None]:
        """Call the core while the context is open. Whoever does has waited for it."""
        return self._calls.here()

    async def end_calls(self, seconds: float) -> None:
        """Let nobody call any more; return when those that have called the dead core know of it.

        Raises TimeoutError if that takes longer than `seconds`.
        """
        self.is_coming = True
        async with asyncio.timeout(seconds):
            await self._calls.nobody()

    def begin(self) -> None:
        """Another core lives."""
        self._began_at = self._clock()
        self.is_coming = False
        self._tell()

    def end(self) -> None:
        """No other core will come."""
        self.is_coming, self._is_over = False, True
        self._tell()

    def _tell(self) -> None:
        for call in self._parked:
            call.has_news.set()


Run = Callable[[Any, Sequence[bytes], Sequence[Work]], AsyncGenerator[Results, None]]
#: It has no results for lines of batches that are not among the last.
RunSome = Callable[
    [Any, Sequence[bytes], Sequence[Work], AbstractSet[str]], AsyncGenerator[Results, None]
]


def while_core_lives(run_lines: RunSome) -> Run:
    """Of a method of what has a `core_life`: its calls are known, and wait for a core."""

    @wraps(run_lines)
    async def run(
        server: Any, lines: Sequence[bytes], order: Sequence[Work]
    ) -> AsyncGenerator[Results, None]:
        life: CoreLife = server.core_life
        wanted = await life.wait({work.batch_id for work in order})
        if order and not wanted:
            return
        with life.used():
            async with aclosing(run_lines(server, lines, order, wanted)) as groups:
                async for group in groups:
                    yield group

    return run
