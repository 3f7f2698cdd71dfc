"""Calls of the synchronous client, each in a thread, and tried again while S3 is away."""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeVar

import stamina

from shared.call_times import timed
from shared.errors import TransientError
from shared.storage.errors import translated

T = TypeVar("T")

THREADS = 24


class Calls:
    """Runs calls in its own threads and raises our errors.

    A call has `attempts`, and `patience_seconds` in total, if given.
    """

    def __init__(self, *, attempts: int, patience_seconds: float | None) -> None:
        self._attempts = attempts
        self._patience_seconds = patience_seconds
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="storage")

    async def call(
        self, function: Callable[[], T], *, drop: Callable[[T], object] | None = None
    ) -> T:
        """The result of a call that may be repeated; `drop` gets one that comes too late."""
        # Patience covers waiting for a thread, too: all of them may wait for a server that hangs.
        async with _patience(self._patience_seconds):
            return await self._try(function, drop)

    async def call_once(self, function: Callable[[], T]) -> T:
        """The result of a call that is tried once."""
        async with _patience(self._patience_seconds):
            return await self.in_thread(function)

    async def in_thread(
        self, function: Callable[[], T], drop: Callable[[T], object] | None = None
    ) -> T:
        """The result of a call that is tried once and may take as long as it needs."""
        with timed("s3"):
            made = self._pool.submit(translated, function)
            try:
                return await asyncio.wrap_future(made)
            except asyncio.CancelledError:
                if drop is not None:
                    made.add_done_callback(partial(_drop, drop))
                raise

    def close(self) -> None:
        """Release the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _try(self, function: Callable[[], T], drop: Callable[[T], object] | None) -> T:
        async for attempt in stamina.retry_context(
            on=TransientError, attempts=self._attempts, timeout=30, wait_initial=0.1, wait_max=2
        ):
            with attempt:
                return await self.in_thread(function, drop)
        raise AssertionError("unreachable: stamina raises after its last attempt")


def _drop(drop: Callable[[T], object], made: "Future[T]") -> None:
    if not made.cancelled() and made.exception() is None:
        drop(made.result())


@asynccontextmanager
async def _patience(seconds: float | None) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError as error:
        raise TransientError("S3 does not answer.") from error
