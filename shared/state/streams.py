"""Event streams that tenants have open, in all gateways together; nothing of them is on disk."""

from collections.abc import Iterable
from typing import NamedTuple

from shared.state.scripts import Scripts


class Stream(NamedTuple):
    """One open event stream."""

    tenant: str
    id: str


class Streams:
    """The noun `event stream` of State."""

    def __init__(self, scripts: Scripts) -> None:
        self._scripts = scripts

    async def open(self, stream: Stream, *, limit: int, seconds: float) -> int | None:
        """Count the stream for so long, if its tenant has fewer than `limit`.

        Returns None, or how many the tenant has if these are too many.
        """
        milliseconds = int(seconds * 1000)
        is_open, count = await self._scripts.run("open_stream", *stream, limit, milliseconds)
        return None if is_open else count

    async def renew(self, streams: Iterable[Stream], *, seconds: float) -> None:
        """Count the streams for so long from now on, also if Redis has forgotten them."""
        await self._scripts.run("renew_streams", int(seconds * 1000), *_parts(streams))

    async def close(self, streams: Iterable[Stream]) -> None:
        """Count the streams no longer."""
        await self._scripts.run("close_streams", *_parts(streams))


def _parts(streams: Iterable[Stream]) -> list[str]:
    return [part for stream in streams for part in stream]
