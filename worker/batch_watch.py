"""Stops running slices whose batch was paused, cancelled, or has ended in another way."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from shared.errors import TransientError
from shared.slices import Claim, Stop
from shared.state import Bells, State

log = structlog.get_logger()

#: The batches are looked at this often if no bell rings.
_CHECK_SECONDS = 1.0
#: Between two looks: bells may ring often.
_PAUSE_SECONDS = 0.02


class BatchWatch:
    """Hears at once when a batch stops, and tells all slices of it that run in this process."""

    def __init__(self, state: State) -> None:
        self._state = state
        #: By batch and lane.
        self._runs: defaultdict[tuple[str, str], list[_Run]] = defaultdict(list)
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def stopping(self, claim: Claim, stop: Callable[[Stop], object]) -> Iterator[None]:
        """Call `stop` if the slice must stop while the context is open, once for each reason."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._watch())
        run, place = _Run(stop), (claim.batch_id, claim.lane)
        self._runs[place].append(run)
        try:
            yield
        finally:
            self._runs[place].remove(run)
            if not self._runs[place]:
                del self._runs[place]

    async def tell_ending(self, claim: Claim, rows: int) -> None:
        """Tell how many rows of a slice of a paused batch are still in the engine.

        Whoever has paused the batch wants to know, and does without if Redis is away.
        """
        try:
            await self._state.claims.tell_ending(claim, rows)
        except TransientError as error:
            log.warning("slice.ending_untold", batch_id=claim.batch_id, reason=str(error))

    async def _watch(self) -> None:
        while True:
            try:
                async with self._state.bells("stops") as bells:
                    await self._watch_with(bells)
            except TransientError:
                await asyncio.sleep(_CHECK_SECONDS)

    async def _watch_with(self, bells: Bells) -> None:
        """Look whenever the bell rings. Raises TransientError when Redis is lost."""
        while True:
            if self._runs:
                for place, reason in (await self._state.claims.stops(list(self._runs))).items():
                    for run in list(self._runs.get(place, ())):
                        run.tell(reason)
            await asyncio.sleep(_PAUSE_SECONDS)
            await bells.wait(_CHECK_SECONDS)


class _Run:
    """One slice that runs."""

    def __init__(self, stop: Callable[[Stop], object]) -> None:
        self._stop = stop
        self._told: set[Stop] = set()

    def tell(self, reason: Stop) -> None:
        if reason not in self._told:
            self._told.add(reason)
            self._stop(reason)
