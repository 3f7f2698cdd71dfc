"""What tenants have open, in all gateways together: event streams, downloads, and live calls.

Nothing of it is on disk.
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple

from shared.state.scripts import Scripts

#: The first word of their keys.
Kind = Literal["streams", "downloads", "live-calls"]


class Stream(NamedTuple):
    """One open event stream, one download, or one live call."""

    tenant: str
    id: str


class Streams:
    """The noun `event stream` of State."""

    def __init__(self, scripts: Scripts, kind: Kind = "streams") -> None:
        self._scripts = scripts
        self._kind = kind

    async def open(self, stream: Stream, *, limit: int, seconds: float) -> int | None:
        """Count the stream for so long, if its tenant has fewer than `limit`.

        Returns None, or how many the tenant has if these are too many.
        """
        milliseconds = int(seconds * 1000)
        is_open, count = await self._scripts.run(
            "open_stream", self._kind, *stream, limit, milliseconds
        )
        return None if is_open else count

    async def renew(self, streams: Iterable[Stream], *, seconds: float) -> None:
        """Count the streams for so long from now on, also if Redis has forgotten them."""
        await self._scripts.run("renew_streams", self._kind, int(seconds * 1000), *_parts(streams))

    async def close(self, streams: Iterable[Stream]) -> None:
        """Count the streams no longer."""
        await self._scripts.run("close_streams", self._kind, *_parts(streams))


def _parts(streams: Iterable[Stream]) -> list[str]:
    return [part for stream in streams for part in stream]
