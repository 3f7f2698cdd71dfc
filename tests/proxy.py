"""A TCP proxy whose connections a test can cut."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit


class Proxy:
    """Stands before a server; `url` is the server's with the proxy's address."""

    def __init__(self, url: str, port: int) -> None:
        parts = urlsplit(url)
        login = parts.netloc.rpartition("@")[0]
        self.url = parts._replace(netloc=f"{login}@127.0.0.1:{port}").geturl()
        #: Whether new connections are dropped as well.
        self.is_down = False
        #: What the server says waits for it.
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self._open: set[asyncio.StreamWriter] = set()

    def cut(self) -> int:
        """Drop all connections without a farewell. Returns how many there were."""
        open_now = len(self._open) // 2
        for writer in self._open:
            writer.transport.abort()
        return open_now

    async def serve(
        self, upstream: tuple[str, int], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if self.is_down:
            writer.transport.abort()
            return
        there_reader, there_writer = await asyncio.open_connection(*upstream)
        both = {writer, there_writer}
        self._open |= both
        try:
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(_pump(reader, there_writer))
                pumps.create_task(_pump(there_reader, writer, self.may_answer))
        finally:
            self._open -= both
            for end in both:
                end.transport.abort()


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, may: asyncio.Event | None = None
) -> None:
    try:
        while some := await reader.read(65_536):
            if may is not None:
                await may.wait()
            writer.write(some)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.transport.abort()


@asynccontextmanager
async def proxied(url: str) -> AsyncIterator[Proxy]:
    """A proxy before the server of this URL."""
    parts = urlsplit(url)
    upstream = (parts.hostname or "127.0.0.1", parts.port or 5672)
    found: list[Proxy] = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await found[0].serve(upstream, reader, writer)

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    found.append(Proxy(url, server.sockets[0].getsockname()[1]))
    try:
        yield found[0]
    finally:
        server.close()
        found[0].cut()
        await server.wait_closed()
