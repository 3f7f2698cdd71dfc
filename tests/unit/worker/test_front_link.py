import asyncio
import socket
from typing import Any

import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from shared.slices import SliceUsage
from tests.eventually import eventually
from worker.front_link import Abort, Add, Answer, Cancel, Link, Message, Outputs, Ping, Row
from worker.row_requests import RowAnswer

_NUMBERS = st.integers(0, 2**63 - 1)
_USAGES = st.builds(SliceUsage, *[_NUMBERS] * len(SliceUsage._fields))
_HEADERS = st.none() | st.dictionaries(st.text(), st.text(), max_size=3)
_ANSWERS = st.builds(RowAnswer, st.just(200), st.binary(), st.none() | _USAGES)
_MESSAGES: Any = st.one_of(
    st.builds(Row, _NUMBERS, st.binary(), st.booleans()),
    st.builds(Cancel, _NUMBERS),
    st.builds(Outputs, st.lists(st.binary())),
    st.builds(Add, _NUMBERS, st.text(), st.lists(st.binary()), _NUMBERS, _HEADERS),
    st.builds(Abort, st.lists(st.text())),
    st.builds(Answer, _NUMBERS, _ANSWERS),
    st.builds(Ping),
)


@settings(max_examples=30, deadline=None)
@given(st.lists(_MESSAGES, max_size=8), st.integers(1, 50))
def test_what_comes_in_pieces_of_any_size_is_what_was_sent(
    messages: list[Message], size: int
) -> None:
    sent, taken = asyncio.run(_sent(messages)), list[Message]()
    link = Link(taken.append, lambda: None)

    for at in range(0, len(sent), size):
        link.data_received(sent[at : at + size])

    assert taken == messages


async def _sent(messages: list[Message]) -> bytes:
    loop = asyncio.get_running_loop()
    ours, theirs = socket.socketpair()
    link = Link(lambda _: None, lambda: None)
    await loop.create_connection(lambda: link, sock=ours)
    for message in messages:
        link.send(message)
    await asyncio.sleep(0)
    link.close()
    with theirs:
        theirs.setblocking(False)
        data = b""
        while some := await loop.sock_recv(theirs, 65_536):
            data += some
    return data


async def test_what_is_sent_while_the_link_is_held_is_sent_in_its_order_when_it_is_let_go() -> None:
    taken: list[Message] = []
    ours, theirs = await _pair(taken.append)
    try:
        ours.hold(True)
        ours.send(Ping())
        ours.send(Cancel(1))
        await asyncio.sleep(0.05)
        assert taken == []

        ours.hold(False)
        ours.send(Cancel(2))

        await eventually(lambda: taken == [Ping(), Cancel(1), Cancel(2)])
    finally:
        ours.close()
        theirs.close()


async def test_what_is_sent_waits_for_more_as_long_as_the_link_lingers() -> None:
    taken: list[Message] = []
    ours, theirs = await _pair(taken.append, linger=0.02)
    try:
        ours.send(Ping())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert taken == []
        ours.send(Cancel(1))
        await eventually(lambda: taken == [Ping(), Cancel(1)])
    finally:
        ours.close()
        theirs.close()


async def test_a_link_that_lingers_sends_at_once_what_is_flushed() -> None:
    taken: list[Message] = []
    ours, theirs = await _pair(taken.append, linger=3600)
    try:
        ours.send(Ping())
        ours.flush()
        await eventually(lambda: taken == [Ping()])
    finally:
        ours.close()
        theirs.close()


async def test_large_messages_arrive_in_their_order() -> None:
    taken: list[Message] = []
    link, other = await _pair(taken.append)

    sent: list[Message] = [Answer(number, RowAnswer(200, bytes(3_000_000))) for number in range(5)]
    for message in sent:
        link.send(message)

    await eventually(lambda: len(taken) == len(sent))
    assert taken == sent
    other.close()


def test_the_loop_of_a_replica_is_uvloop_s() -> None:
    uvloop.run(test_large_messages_arrive_in_their_order())


async def test_either_end_hears_that_the_other_is_gone() -> None:
    gone = asyncio.Event()
    _, other = await _pair(lambda _: None, gone.set)

    other.close()

    await asyncio.wait_for(gone.wait(), 60)


async def test_a_message_to_an_end_that_is_gone_is_lost_without_an_error() -> None:
    gone = asyncio.Event()
    link, other = await _pair(lambda _: None, gone.set)
    other.close()
    await asyncio.wait_for(gone.wait(), 60)

    link.send(Ping())

    await asyncio.sleep(0)


async def _pair(take: Any, lost: Any = lambda: None, *, linger: float = 0.0) -> tuple[Link, Link]:
    """A link, and the other end, which takes its messages."""
    loop = asyncio.get_running_loop()
    one, two = socket.socketpair()
    link, other = Link(lambda _: None, lost, linger=linger), Link(take, lambda: None)
    await loop.create_connection(lambda: link, sock=one)
    await loop.create_connection(lambda: other, sock=two)
    return link, other
