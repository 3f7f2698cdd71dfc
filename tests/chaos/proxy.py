"""TCP proxies that fail on command: `python -m tests.chaos.proxy HOST PORT LINKS`.

LINKS is a JSON object: the name of each link, at which port of HOST it listens and where it leads.
PORT takes orders, one JSON object a line: `{"link": …, "fault": …, "value": …}`, each answered by a
line.
"""

import asyncio
import json
import socket
import struct
import sys
from contextlib import suppress
from typing import Any

_CHUNK_BYTES = 65_536


class FaultProxy:
    """One link between two processes, with its current faults."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        #: Seconds that each chunk is late.
        self.latency = 0.0
        #: Bytes a second; 0 for no limit.
        self.rate = 0.0
        #: Bytes that go out together; 0 for as many as come.
        self.chunk_bytes = 0
        #: After so many answers, so many are lost, each with its connection: what they were about
        #: the server has done.
        self.answers_to_pass, self.answers_to_lose = 0, 0
        #: New connections are refused at once.
        self.refuses = False
        #: While it is not set, nothing arrives, and no error is reported.
        self._flows = asyncio.Event()
        self._flows.set()
        self._connections: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self, port: int = 0, *, host: str = "127.0.0.1") -> int:
        """Listen; returns the port."""
        self._server = await asyncio.start_server(self._take, host, port)
        number: int = self._server.sockets[0].getsockname()[1]
        return number

    def cut(self) -> int:
        """Reset every open connection; returns how many."""
        cut = len(self._connections)
        for writer in list(self._connections):
            _reset(writer)
        return cut

    def heal(self) -> None:
        """End all faults."""
        self.latency, self.rate, self.refuses = 0.0, 0.0, False
        self.chunk_bytes, self.answers_to_pass, self.answers_to_lose = 0, 0, 0
        self._flows.set()

    def hang(self) -> None:
        """Let nothing through until it heals."""
        self._flows.clear()

    async def close(self) -> None:
        """Stop listening, and end what is open."""
        if self._server is not None:
            self._server.close()
        serving = list(self._serving)
        for one in serving:
            one.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    def _maybe_lose(self) -> None:
        if self.answers_to_pass:
            self.answers_to_pass -= 1
        elif self.answers_to_lose:
            self.answers_to_lose -= 1
            raise ConnectionResetError

    def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(serving)
        serving.add_done_callback(self._serving.discard)
        # Also of a task that is cancelled before it has begun.
        serving.add_done_callback(lambda _: _reset(writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refuses:
            return
        with suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection(*self._target)
            both = {writer, far_writer}
            self._connections |= both
            try:
                await asyncio.gather(
                    self._pump(reader, far_writer), self._pump(far_reader, writer, is_answer=True)
                )
                for one in both:
                    one.close()
                for one in both:
                    await one.wait_closed()
            finally:
                self._connections -= both
                _reset(far_writer)

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        is_answer: bool = False,
    ) -> None:
        while chunk := await reader.read(self.chunk_bytes or _CHUNK_BYTES):
            if is_answer:
                self._maybe_lose()
            if self.latency:
                await asyncio.sleep(self.latency)
            if self.rate:
                await asyncio.sleep(len(chunk) / self.rate)
            await self._flows.wait()
            writer.write(chunk)
            await writer.drain()
        await self._flows.wait()
        if writer.can_write_eof():
            writer.write_eof()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close it with RST, as a crashed machine's network does."""
    with suppress(OSError):
        if (sock := writer.get_extra_info("socket")) is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def obey(proxies: dict[str, FaultProxy], order: dict[str, Any]) -> int:
    """Carry out an order; returns how many links or connections it concerned."""
    match order:
        case {"fault": "heal", "link": "*"}:
            for proxy in proxies.values():
                proxy.heal()
            return len(proxies)
        case {"fault": "cut", "link": link}:
            return proxies[link].cut()
        case {"fault": "heal", "link": link}:
            proxies[link].heal()
        case {"fault": "slow", "link": link, "value": value}:
            proxies[link].latency, proxies[link].rate = value
        case {"fault": "hang", "link": link}:
            proxies[link].hang()
        case {"fault": "refuse", "link": link}:
            proxies[link].refuses = True
            proxies[link].cut()
        case _:
            raise ValueError(f"There is no such order: {order}")
    return 1


async def serve(host: str, port: int, links: dict[str, tuple[int, tuple[str, int]]]) -> None:
    """Proxy and take orders until killed."""
    proxies = {name: FaultProxy((target[0], target[1])) for name, (_, target) in links.items()}
    for name, (listen, _) in links.items():
        await proxies[name].start(listen, host=host)

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(f"{obey(proxies, json.loads(line))}\n".encode())
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(take, host, port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])))
