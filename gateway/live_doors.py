"""Which replicas take live calls of a lane, and which of them gets the next one."""

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from shared.doors import Door
from shared.errors import NoEngineError
from shared.state import State

#: How long what Redis says is used.
_FRESH_SECONDS = 0.5
#: How often a gateway says that there are calls.
_WANT_SECONDS = 10.0
#: While a call waits for an engine.
_POLL_SECONDS = 0.1
#: A door that let nobody in is not tried again for so long, if there is another one.
_SHUT_SECONDS = 5.0


@dataclass(slots=True)
class _Lane:
    doors: list[Door] = field(default_factory=list)
    read_at: float = 0.0
    wanted_at: float = 0.0
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)


def next_door(doors: Collection[Door], calls: Mapping[str, int]) -> Door:
    """The door for the next call, with the number of calls at each replica.

    The one with the fewest calls. Where batches run, calls stay together as long as they have seats
    of their own, so that batches give way on few engines, and have the others to themselves.
    """
    if any(door.has_batches for door in doors):
        roomy = [door for door in doors if calls[door.replica] < door.seats]
        if roomy:
            # Of two without calls, all gateways take the same.
            return max(roomy, key=lambda door: (calls[door.replica], door.replica))
    return min(doors, key=lambda door: calls[door.replica])


class LiveDoors:
    """What this gateway knows. Belongs to one event loop."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._lanes: defaultdict[str, _Lane] = defaultdict(_Lane)
        #: Calls of this gateway, by replica.
        self._calls = Counter[str]()
        self._shut_until: dict[str, float] = {}

    async def choose(self, lane: str, *, tried: Collection[str], wait_seconds: float) -> Door:
        """The door for a call that has tried these replicas.

        Waits for an engine that has to start. Raises NoEngineError when that takes too long, and
        TransientError.
        """
        deadline = time.monotonic() + wait_seconds
        while True:
            await self._want(lane)
            known = await self._read(lane)
            if doors := [door for door in known if door.replica not in tried]:
                now = time.monotonic()
                open_ = [one for one in doors if self._shut_until.get(one.replica, 0.0) <= now]
                return next_door(open_ or doors, self._calls)
            if time.monotonic() >= deadline:
                raise NoEngineError(f"No engine of lane {lane} takes live calls yet.")
            await asyncio.sleep(_POLL_SECONDS)

    @contextmanager
    def calling(self, door: Door) -> Iterator[None]:
        """Count a call at the door while it lasts."""
        self._calls[door.replica] += 1
        try:
            yield
        finally:
            self._calls[door.replica] -= 1
            if not self._calls[door.replica]:
                del self._calls[door.replica]

    def shut(self, door: Door) -> None:
        """Note that the door let nobody in."""
        now = time.monotonic()
        self._shut_until = {name: end for name, end in self._shut_until.items() if end > now}
        self._shut_until[door.replica] = now + _SHUT_SECONDS

    async def _read(self, lane: str) -> list[Door]:
        known = self._lanes[lane]
        # One question for all calls that come at once.
        async with known.reading:
            if time.monotonic() - known.read_at >= (_FRESH_SECONDS if known.doors else 0.0):
                known.doors = await self._state.doors.of(lane)
                known.read_at = time.monotonic()
        return known.doors

    async def _want(self, lane: str) -> None:
        known = self._lanes[lane]
        if time.monotonic() - known.wanted_at >= _WANT_SECONDS:
            known.wanted_at = time.monotonic()
            await self._state.doors.want(lane)
