"""Counts what each tenant has open, in all gateways together: event streams, downloads, live calls.

Each stream is counted for a while and renewed as long as it is open, so those of a gateway that
died are not counted for long.
"""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager

import structlog

from gateway.limit_errors import limit_reached
from shared.errors import TransientError
from shared.openai.limits import Amount
from shared.state import Stream, Streams
from shared.submission.admission import Reached
from shared.tasks import end

log = structlog.get_logger()

#: A stream that nobody renews is counted for so long.
COUNTED_SECONDS = 60.0
_RENEW_SECONDS = 20.0


class OpenStreams:
    """The event streams of this process, its downloads, or its live calls."""

    def __init__(self, streams: Streams, amount: Amount) -> None:
        self._streams = streams
        self._amount: Amount = amount
        self._open: set[Stream] = set()
        self._closed: set[Stream] = set()
        self._renewing: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None

    async def take(self, tenant: str, *, limit: int) -> Stream:
        """A place for one more stream of the tenant. Raises LimitError if it has `limit` of them.

        The place is free again after a while unless `counted` begins, or at once by `free`.
        """
        stream = Stream(tenant, secrets.token_hex(8))
        used = await self._streams.open(stream, limit=limit, seconds=COUNTED_SECONDS)
        if used is not None:
            raise limit_reached(tenant, Reached(self._amount, None, limit, used))
        return stream

    async def counted(
        self, stream: Stream, frames: AsyncGenerator[bytes, None]
    ) -> AsyncGenerator[bytes, None]:
        """The frames. The stream is counted until they end, or nobody wants more of them."""
        with self.counting(stream):
            async with aclosing(frames):
                async for frame in frames:
                    yield frame

    @contextmanager
    def counting(self, stream: Stream) -> Iterator[None]:
        """Count the stream until the context ends."""
        self._open.add(stream)
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._renew())
        try:
            yield
        finally:
            self._open.discard(stream)
            self.free(stream)

    def free(self, stream: Stream) -> None:
        """Count the stream no longer."""
        self._closed.add(stream)
        # In a task, because whoever reads the stream may be cancelled; one for all, because
        # thousands may end at once.
        if self._closing is None or self._closing.done():
            self._closing = asyncio.create_task(self._close())

    async def end(self) -> None:
        """Count none of them any more."""
        if self._closing is not None:
            await self._closing
        if self._renewing is not None:
            await end(self._renewing)

    async def _renew(self) -> None:
        while self._open:
            await asyncio.sleep(_RENEW_SECONDS)
            renewed = set(self._open)
            try:
                await self._streams.renew(renewed, seconds=COUNTED_SECONDS)
            except TransientError as error:
                log.warning("streams.not_renewed", reason=str(error))
            # One that was closed meanwhile may be counted again.
            for stream in renewed - self._open:
                self.free(stream)

    async def _close(self) -> None:
        while self._closed:
            streams, self._closed = self._closed, set()
            try:
                await self._streams.close(streams)
            except TransientError as error:
                log.warning("streams.still_counted", reason=str(error))
