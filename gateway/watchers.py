"""Fans the events of batches out to any number of watchers, over one Redis connection per process.

Each event holds a batch's whole state, so only the newest event of a batch is kept. A watcher that
cannot keep up skips events and costs no memory.
"""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncGenerator, Mapping
from typing import NamedTuple

import structlog
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event

from shared.bus.event_shapes import EVENT_TYPES
from shared.bus.events import watched_state
from shared.errors import TransientError
from shared.lifecycle import FINAL
from shared.state import BatchRecord, State
from shared.state.watch import Heard
from shared.tasks import end

log = structlog.get_logger()

#: A lost connection loses messages, so the records are also read this often.
_SWEEP_SECONDS = 15.0
_PAUSE_SECONDS = 1.0
#: The event that announced each status.
_EVENT_OF_STATUS = {kind.status: name for name, kind in EVENT_TYPES.items() if kind.status}


class Frame(NamedTuple):
    """An event as watchers receive it, encoded once for all of them."""

    sequence: int
    body: bytes
    is_final: bool


class _Watched:
    """A watched batch: its newest event, and a way to wait for a newer one."""

    def __init__(self) -> None:
        self.newest: Frame | None = None
        self.watchers = 0
        self._changed = asyncio.Event()

    def take(self, frame: Frame) -> None:
        if self.newest is None or frame.sequence > self.newest.sequence:
            self.newest = frame
            self.wake()

    def wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def change(self, seconds: float) -> bool:
        """Wait for something new. Returns False if nothing comes within `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True


class Watchers:
    """All watchers of this process, and the one task that listens to Redis for them."""

    def __init__(self, state: State, *, heartbeat_seconds: float) -> None:
        self._state = state
        self._heartbeat_seconds = heartbeat_seconds
        self._bell = f"watchers:{secrets.token_hex(8)}"
        self._watched: dict[str, _Watched] = {}
        self._listening: asyncio.Task[None] | None = None
        self._ringing: asyncio.Task[None] | None = None
        self._must_ring = False
        self._is_closing = False

    async def watch(self, batch_id: str, *, seen: int = -1) -> AsyncGenerator[bytes, None]:
        """The batch's state at once, and then each event up to the last, as server-sent events.

        Events up to the sequence number `seen` are not sent again. Comments between events keep
        the connection open. The stream also ends with the process, or if listening fails.
        """
        watched = self._watched.setdefault(batch_id, _Watched())
        watched.watchers += 1
        try:
            if watched.newest is None:
                self._notice()
            while not self._is_closing and self._listening and not self._listening.done():
                frame = watched.newest
                if frame is None or frame.sequence <= seen:
                    if not await watched.change(self._heartbeat_seconds):
                        yield KEEPALIVE_COMMENT
                    continue
                seen = frame.sequence
                yield frame.body
                if frame.is_final:
                    return
        finally:
            watched.watchers -= 1
            # Another watcher may have made a new one in the meantime.
            if not watched.watchers and self._watched.get(batch_id) is watched:
                del self._watched[batch_id]

    def close(self) -> None:
        """End all streams, because a server waits for its answers before it stops."""
        self._is_closing = True
        self._wake()

    async def end(self) -> None:
        """Stop listening."""
        self.close()
        await end(*(task for task in (self._listening, self._ringing) if task))

    def _wake(self) -> None:
        for watched in self._watched.values():
            watched.wake()

    def _notice(self) -> None:
        """Make the listening task notice a batch that was not watched before."""
        if self._listening is None or self._listening.done():
            self._listening = asyncio.create_task(self._listen())
            self._listening.add_done_callback(self._note_end)
            return
        self._must_ring = True
        if self._ringing is None or self._ringing.done():
            self._ringing = asyncio.create_task(self._ring())

    async def _ring(self) -> None:
        """Make one call at a time, however many batches are new."""
        while self._must_ring:
            self._must_ring = False
            try:
                await self._state.ring(self._bell)
            except TransientError:
                # Until this works, only the next sweep notices them.
                self._must_ring = True
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _listen(self) -> None:
        while True:
            try:
                await self._listen_on_one_connection()
            except TransientError as error:
                log.warning("watchers.deaf", reason=str(error))
                await asyncio.sleep(_PAUSE_SECONDS)

    def _note_end(self, listening: asyncio.Task[None]) -> None:
        # The streams end with it, and the next watcher starts another.
        if not listening.cancelled():
            reason = repr(listening.exception())
            log.error("watchers.broke", code="internal_error", reason=reason)
        self._wake()

    async def _listen_on_one_connection(self) -> None:
        swept, begun = time.monotonic(), set[str]()
        async with self._state.watching(self._bell) as watch:
            while True:
                await watch.choose(self._watched)
                # A batch may have lost its last watcher and got a new one since the last round.
                begun &= self._watched.keys()
                await self._read({name for name in begun if not self._watched[name].newest})
                heard = await watch.next(_SWEEP_SECONDS)
                for one in heard:
                    self._take(one)
                # A batch is read only after its subscription has begun, so no event is missed.
                fresh = {one.batch_id for one in heard if one.snapshot is None}
                begun |= fresh
                if time.monotonic() - swept > _SWEEP_SECONDS:
                    fresh, swept = set(self._watched), time.monotonic()
                await self._read(fresh)

    async def _read(self, batch_ids: set[str]) -> None:
        for record in await self._state.batches.many(sorted(batch_ids)) if batch_ids else []:
            if (watched := self._watched.get(record.id)) is not None:
                watched.take(_current(record, at=time.time()))

    def _take(self, heard: Heard) -> None:
        watched = self._watched.get(heard.batch_id)
        if watched is not None and heard.snapshot is not None:
            watched.take(
                _frame(heard.snapshot, sequence=heard.sequence, at=heard.at, kind=heard.kind)
            )


def _current(record: BatchRecord, *, at: float) -> Frame:
    sequence = record.number("sequence")
    return _frame(record.fields, sequence=sequence, at=at, kind=_EVENT_OF_STATUS[record.status])


def _frame(fields: Mapping[str, str], *, sequence: int, at: float, kind: str) -> Frame:
    state = watched_state(fields, sequence=sequence, at=at, kind=kind)
    body = format_sse_event(
        data_str=json.dumps(state, separators=(",", ":")), event=kind, id=str(sequence)
    )
    return Frame(sequence, body, state["status"] in FINAL)
