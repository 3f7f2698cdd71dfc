"""A receiver of webhooks on 127.0.0.1, which answers as the test wants."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, NamedTuple

import httpx
from openai import OpenAI


class Call(NamedTuple):
    """One request as it came in; names of headers are in lower case."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    def unwrapped(self, secret: str) -> Any:
        """The event, if the SDK accepts the signature by `secret`."""
        client = OpenAI(api_key="none", webhook_secret=secret)
        with client:
            return client.webhooks.unwrap(self.body, self.headers)


Reply = tuple[int, Mapping[str, str]]


class Receiver:
    """Keeps what it receives. `answer` chooses answers; a closed `gate` holds them back."""

    def __init__(self, answer: Callable[[Call], Reply | int]) -> None:
        self.calls: list[Call] = []
        self.answered = 0
        self.url = ""
        self.port = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self._answer = answer

    @property
    def ids(self) -> list[str]:
        return [call.id for call in self.calls]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            lines = (line.partition(": ") for line in head[1:] if line)
            headers = {name.lower(): value for name, _, value in lines}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            call = Call(head[0].split(" ")[1], headers, body)
            self.calls.append(call)
            await self.gate.wait()
            reply = self._answer(call)
            status, more = reply if isinstance(reply, tuple) else (reply, {})
            more_head = "".join(f"{name}: {value}\r\n" for name, value in more.items())
            writer.write(f"HTTP/1.1 {status} X\r\n{more_head}content-length: 2\r\n\r\nok".encode())
            await writer.drain()
            self.answered += 1
        writer.close()


@contextlib.asynccontextmanager
async def receiving(
    answer: Callable[[Call], Reply | int] = lambda _: 200, *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Receiver]:
    """A receiver that has gone when this ends, with all its connections."""
    receiver = Receiver(answer)
    open_now: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        open_now.add(task)
        try:
            await receiver.serve(reader, writer)
        finally:
            open_now.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    receiver.port = server.sockets[0].getsockname()[1]
    receiver.url = f"http{'s' if tls else ''}://127.0.0.1:{receiver.port}/hook"
    try:
        yield receiver
    finally:
        server.close()
        receiver.gate.set()
        await asyncio.gather(*open_now, return_exceptions=True)


def answers(*statuses: int) -> Callable[[Call], int]:
    """These one after the other, then 200."""
    left = iter(statuses)
    return lambda _: next(left, httpx.codes.OK)
