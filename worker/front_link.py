"""What a replica and its front processes say to each other, over a pair of sockets.

Messages of one moment travel together: each frame is a list of them, after its length.
"""

import asyncio
import struct
import time
from collections.abc import Callable
from typing import TypeAlias, cast

import msgspec

from worker.row_requests import RowAnswer

_LENGTH = struct.Struct("!Q")


class _Message(msgspec.Struct, array_like=True, tag=True, gc=False):
    pass


class Setup(_Message):
    """To a front: what it is made of, pickled by the replica."""

    pickled: bytes


class Row(_Message):
    """To a front: answer the request of this line."""

    number: int
    line: bytes
    #: Whether it goes before those that the front has not begun.
    is_first: bool = False


class Cancel(_Message):
    """To a front: nobody waits for this row any more."""

    number: int


class Outputs(_Message):
    """To a front: what vLLM's core says of its sequences, in vLLM's own encoding."""

    frames: list[bytes]
    #: Whether it is of rows that were first, and their last.
    is_first: bool = False


class Ping(_Message):
    """To a front: say that you live."""


class Ready(_Message):
    """From a front: it takes rows."""

    pid: int


class Pong(_Message):
    """From a front: it lives."""


class Add(_Message):
    """From a front: a sequence of a row that may enter vLLM's core, in vLLM's own encoding."""

    number: int
    id: str
    frames: list[bytes]
    #: How long the prompt is, and what the front's own caller has sent with it.
    prompt_tokens: int
    trace_headers: dict[str, str] | None


class Abort(_Message):
    """From a front: these sequences shall end."""

    ids: list[str]


class Answer(_Message):
    """From a front: the result of a row."""

    number: int
    answer: RowAnswer


Message: TypeAlias = Setup | Row | Cancel | Outputs | Ping | Ready | Pong | Add | Abort | Answer


class Link(asyncio.Protocol):
    """One end. Belongs to one event loop."""

    def __init__(
        self, take: Callable[[Message], None], lost: Callable[[], None], *, linger: float = 0.0
    ) -> None:
        """`take` gets each message, and `lost` is called once, when the other end is gone.

        What is sent waits for so many seconds, so that more of it travels together.
        """
        self._take = take
        self._lost = lost
        self._linger = linger
        self._transport: asyncio.Transport | None = None
        #: When something last came, by the monotonic clock.
        self.heard_at = 0.0
        self._received = bytearray()
        self._unsent: list[Message] = []
        self._is_held = False
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(list[Message])

    def send(self, message: Message) -> None:
        """Send it soon; what is sent to an end that is gone is lost."""
        self._unsent.append(message)
        if len(self._unsent) > 1:
            return
        loop = asyncio.get_running_loop()
        if self._linger:
            loop.call_later(self._linger, self.flush)
        else:
            loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send now what waits, unless it is held."""
        if self._is_held or not self._unsent:
            return
        messages, self._unsent = self._unsent, []
        if self._transport is not None:
            frame = self._encoder.encode(messages)
            self._transport.writelines((_LENGTH.pack(len(frame)), frame))

    def hold(self, is_held: bool) -> None:  # noqa: FBT001  # it says which
        """Keep what is sent from now on, to send it together; or no more, and send what is kept."""
        self._is_held = is_held
        self.flush()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's have another class.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self.heard_at = time.monotonic()
        self._received += data
        while len(self._received) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._received)[0]
            if len(self._received) < end:
                return
            frame = bytes(memoryview(self._received)[_LENGTH.size : end])
            del self._received[:end]
            for message in self._decoder.decode(frame):
                self._take(message)

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        self._lost()
