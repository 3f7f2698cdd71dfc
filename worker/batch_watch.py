"""Stops running slices whose batch is no longer in progress, such as a cancelled one."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shared.errors import TransientError
from shared.lifecycle import Status
from shared.state import State

#: How often the batches are looked at, in seconds; a slice stops about that long after its batch.
_CHECK_SECONDS = 1.0


class BatchWatch:
    """Asks for the statuses of all running batches together, for all their slices."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._stops: defaultdict[str, list[Callable[[], object]]] = defaultdict(list)
        self._task: asyncio.Task[None] | None = None

    @contextmanager
    def closing(self, batch_id: str, stop: Callable[[], object]) -> Iterator[None]:
        """Call `stop` once if the batch leaves `in_progress` while the context is open."""
        if self._task is None:
            self._task = asyncio.ensure_future(self._watch())
        stops = self._stops[batch_id]
        stops.append(stop)
        try:
            yield
        finally:
            if stop in stops:
                stops.remove(stop)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            ids = [batch_id for batch_id, stops in self._stops.items() if stops]
            self._stops = defaultdict(list, {name: self._stops[name] for name in ids})
            try:
                statuses = await self._state.batches.statuses(ids)
            except TransientError:
                continue
            for batch_id, status in statuses.items():
                if status is not Status.IN_PROGRESS:
                    for stop in self._stops.pop(batch_id, []):
                        stop()
