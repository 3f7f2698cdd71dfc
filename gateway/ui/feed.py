"""Keeps open pages live: one task reads Redis for all pages of this process.

A page shows a view. Each second the task asks, in one round trip for all views, what has changed,
and makes the HTML of a view again only then, once for all pages that show it.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import NamedTuple

import structlog
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event

from shared.errors import BatchyardError, TransientError
from shared.state import State
from shared.state.events import Marks
from shared.tasks import end

log = structlog.get_logger()

_TICK_SECONDS = 1.0
#: What nobody announces, such as a place in a queue, is looked at this often.
_STALE_SECONDS = 10.0
#: Views that are made at the same time.
_AT_ONCE = 8


class Seen(NamedTuple):
    """What a view shows: its HTML, and the batches in it that may still change."""

    html: str
    batch_ids: tuple[str, ...] = ()


class View(NamedTuple):
    """What a page shows: pages with the same name show the same."""

    name: str
    #: Whose changes make the view old; empty for one that is only looked at from time to time.
    tenant: str
    look: Callable[[], Awaitable[Seen]]
    stale_seconds: float = _STALE_SECONDS


class _Open:
    """A view that some page shows now."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.pages = 0
        self.seen: Seen | None = None
        self.frame = b""
        self.number = 0
        self.made_at = 0.0
        self.version: object = None
        self._changed = asyncio.Event()

    def take(self, seen: Seen, *, at: float) -> None:
        is_new = self.seen is None or self.seen.html != seen.html
        self.seen, self.made_at = seen, at
        if is_new:
            self.number += 1
            self.frame = format_sse_event(data_str=seen.html, id=str(self.number))
            self.wake()

    def wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def change(self, seconds: float) -> bool:
        """Wait for something new. Returns False if nothing comes in time."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True


class Feed:
    """All open pages of this process, and the one task that reads for them."""

    def __init__(self, state: State, *, heartbeat_seconds: float) -> None:
        self._state = state
        self._heartbeat_seconds = heartbeat_seconds
        self._open: dict[str, _Open] = {}
        self._reading: asyncio.Task[None] | None = None
        self._is_closing = False

    async def follow(self, view: View) -> AsyncGenerator[bytes, None]:
        """The view's HTML now and at each change, as server-sent events, until the feed closes."""
        shown = self._open.setdefault(view.name, _Open(view))
        shown.pages += 1
        number = 0
        try:
            if self._reading is None or self._reading.done():
                self._reading = asyncio.create_task(self._read())
            while not self._is_closing:
                if shown.number > number:
                    number = shown.number
                    yield shown.frame
                elif not await shown.change(self._heartbeat_seconds):
                    yield KEEPALIVE_COMMENT
        finally:
            shown.pages -= 1
            if not shown.pages and self._open.get(view.name) is shown:
                del self._open[view.name]

    def close(self) -> None:
        """End all streams, because a server waits for its answers before it stops."""
        self._is_closing = True
        for shown in self._open.values():
            shown.wake()

    async def end(self) -> None:
        """Stop reading."""
        self.close()
        if self._reading is not None:
            await end(self._reading)

    async def _read(self) -> None:
        while self._open and not self._is_closing:
            began = time.monotonic()
            try:
                await self._look()
            except TransientError as error:
                log.warning("pages.not_read", reason=str(error))
            await asyncio.sleep(max(0.0, began + _TICK_SECONDS - time.monotonic()))

    async def _look(self) -> None:
        views = list(self._open.values())
        tenants = sorted({shown.view.tenant for shown in views if shown.view.tenant})
        batch_ids = sorted({one for shown in views if shown.seen for one in shown.seen.batch_ids})
        marks = await self._state.events.marks(tenants, batch_ids)
        now = time.monotonic()
        old = [shown for shown in views if _is_old(shown, marks, now)]
        for first in range(0, len(old), _AT_ONCE):
            await asyncio.gather(*(_make(shown, marks) for shown in old[first : first + _AT_ONCE]))


def _is_old(shown: _Open, marks: Marks, now: float) -> bool:
    return (
        shown.seen is None
        or now - shown.made_at >= shown.view.stale_seconds
        or shown.version != _version(shown, marks, shown.seen.batch_ids)
    )


async def _make(shown: _Open, marks: Marks) -> None:
    try:
        seen = await shown.view.look()
    except BatchyardError as error:
        # The batch was deleted, or a service is away: the page stays as it is.
        log.debug("pages.not_made", reason=str(error))
        return
    shown.take(seen, at=time.monotonic())
    shown.version = _version(shown, marks, seen.batch_ids)


def _version(shown: _Open, marks: Marks, batch_ids: Iterable[str]) -> object:
    change = marks.changes.get(shown.view.tenant, 0)
    return change, tuple(marks.sequences.get(one, 0) for one in batch_ids)
