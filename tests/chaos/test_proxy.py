"""Each fault of the proxy is what it says it is: a harness that breaks nothing proves nothing."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.chaos.proxy import FaultProxy, obey
from tests.eventually import eventually

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture
async def proxy() -> AsyncIterator[FaultProxy]:
    """In front of a server that sends everything back."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(1000):
            writer.write(chunk)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    proxy = FaultProxy(("127.0.0.1", server.sockets[0].getsockname()[1]))
    yield proxy
    await proxy.close()
    server.close()


@pytest.fixture
async def streams(proxy: FaultProxy) -> AsyncIterator[Streams]:
    reader, writer = await asyncio.open_connection("127.0.0.1", await proxy.start())
    yield reader, writer
    writer.close()


async def test_a_healthy_link_lets_everything_through(streams: Streams) -> None:
    assert await _echoed(streams, b"x" * 200_000) == b"x" * 200_000


async def test_a_cut_resets_open_connections(proxy: FaultProxy, streams: Streams) -> None:
    await _echoed(streams, b"hello")

    cut = obey({"a>b": proxy}, {"fault": "cut", "link": "a>b"})

    assert cut == 2
    with pytest.raises(ConnectionResetError):
        await streams[0].read(1)


async def test_a_link_that_hangs_is_silent_until_it_heals(
    proxy: FaultProxy, streams: Streams
) -> None:
    await _echoed(streams, b"hello")
    obey({"a>b": proxy}, {"fault": "hang", "link": "a>b"})
    waiting = asyncio.create_task(_echoed(streams, b"late"))
    # Long enough for an echo, should one come.
    done, _ = await asyncio.wait([waiting], timeout=0.2)
    assert not done

    obey({"a>b": proxy}, {"fault": "heal", "link": "*"})

    assert await waiting == b"late"


async def test_a_link_that_refuses_ends_old_and_new_connections(
    proxy: FaultProxy, streams: Streams
) -> None:
    await _echoed(streams, b"hello")

    obey({"a>b": proxy}, {"fault": "refuse", "link": "a>b"})

    with pytest.raises(ConnectionResetError):
        await streams[0].read(1)
    reader, writer = await asyncio.open_connection(*streams[1].get_extra_info("peername"))
    with pytest.raises(ConnectionResetError):
        await reader.read(1)
    writer.close()


async def test_a_slow_link_takes_at_least_its_time(proxy: FaultProxy, streams: Streams) -> None:
    loop = asyncio.get_running_loop()
    obey({"a>b": proxy}, {"fault": "slow", "link": "a>b", "value": [0.05, 1e6]})
    began = loop.time()

    await _echoed(streams, b"hello")

    assert loop.time() - began >= 0.1


async def test_what_comes_in_pieces_arrives_whole(proxy: FaultProxy, streams: Streams) -> None:
    proxy.chunk_bytes = 7

    assert await _echoed(streams, b"0123456789" * 100) == b"0123456789" * 100


async def test_a_lost_answer_ends_its_connection_and_the_next_one_comes(
    proxy: FaultProxy, streams: Streams
) -> None:
    await _echoed(streams, b"hello")
    proxy.answers_to_lose = 1

    with pytest.raises(ConnectionResetError):
        await _echoed(streams, b"lost")

    again = await asyncio.open_connection(*streams[1].get_extra_info("peername"))
    assert await _echoed(again, b"hello") == b"hello"
    again[1].close()


async def test_both_ends_learn_that_the_other_has_closed(
    proxy: FaultProxy, streams: Streams
) -> None:
    await _echoed(streams, b"hello")

    streams[1].write_eof()

    assert await streams[0].read() == b""
    await eventually(lambda: proxy.cut() == 0)


async def _echoed(streams: Streams, body: bytes) -> bytes:
    reader, writer = streams
    writer.write(body)
    await writer.drain()
    return await reader.readexactly(len(body))
