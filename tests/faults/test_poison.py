"""Unreadable messages, and ones that break the contract or the dispatcher, among good ones."""

import asyncio
import json
import os
import random
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import cycle, islice
from typing import Any, NamedTuple

import aio_pika
import pytest
from aio_pika.abc import AbstractExchange, AbstractIncomingMessage
from redis.asyncio import Redis

from shared import ids
from shared.bus import dead_letters, topology
from shared.state.state import NAMESPACE
from tests.eventually import eventually
from tests.faults.conftest import BrokerYard, submission, to_message
from tests.servers import SERVICE, TENANT

pytestmark = pytest.mark.timeout(1800)
_POISON = int(os.environ.get("POISON_MESSAGES", "1000"))
_BREAKING = 10
#: Good ones a second; so slow that their time is the time that one takes.
_PER_SECOND = 10
#: What fails is blocked, and not slow.
_BLOCKED_SECONDS = 60.0
_UNDECODABLE = (b"", b"{", b"\xff\xfe", b'{"schema": "batch.submit/1",', b"[1, 2", b"\x1f\x8b\x08")
_WRONG: Sequence[dict[str, Any]] = (
    {"surprise": 1},
    {"priority": 10},
    {"endpoint": "/v1/images/generations"},
    {"completion_window": "soon"},
    {"not_after": "2020-01-01T00:00:00Z"},
    {"input": {"kind": "mail"}},
    {"input": {"kind": "inline", "requests": []}},
    {"input": {"kind": "file", "file_id": "file-x"}},
)


class Bad(NamedTuple):
    """A message, and the code with which it ends."""

    name: str
    body: bytes
    code: str
    #: Whether it comes back to its sender, to the dead letters, or both.
    replied: bool
    dead: bool


async def test_poison_among_good_messages_ends_as_it_should_and_blocks_none(
    yard: BrokerYard,
) -> None:
    await _poison(yard, of_each=30, breaking=2, good=30)


@pytest.mark.on_demand
async def test_thousands_of_poisoned_messages_end_as_they_should_and_block_none(
    yard: BrokerYard,
) -> None:
    figures = await _poison(yard, of_each=_POISON, breaking=_BREAKING, good=_POISON // 2)

    print("poison:", json.dumps(figures))  # noqa: T201  # what the run is for


async def _poison(yard: BrokerYard, *, of_each: int, breaking: int, good: int) -> dict[str, float]:
    run, dice = secrets.token_hex(4), random.Random(7)
    bad = [*_undecodable(run, of_each), *_wrong(run, of_each), *_breaking(run, breaking)]
    dice.shuffle(bad)
    async with _breaking_on(yard, [one.name for one in bad if one.code == "internal_error"]):
        async with _sending(yard, run) as sender:
            before = await sender.send(f"{run}.clean", good, [])
            beside = await sender.send(f"{run}.beside", good, bad)
            replied = {one.name: one.code for one in bad if one.replied}
            await eventually(lambda: replied.keys() <= sender.replies.keys(), 300)
        died = Counter({one.name: 1 for one in bad if one.dead})

        async def are_dead() -> bool:
            return await yard.count(topology.DEAD_QUEUE) >= died.total()

        await eventually(are_dead, 300)
        letters = [
            dead_letters.read(message, service_user=SERVICE.name)
            for message in await yard.taken(topology.DEAD_QUEUE)
        ]

    assert Counter(str(letter.properties["message_id"]) for letter in letters) == died
    by_name = {one.name: one for one in bad}
    for letter in letters:
        one = by_name[str(letter.properties["message_id"])]
        assert (letter.by, letter.reasons[0].code) == ("dispatcher", one.code)
        assert letter.body == one.body
    rejected = {name: reply for name, reply in sender.replies.items() if name in by_name}
    assert {name: reply["error"]["code"] for name, reply in rejected.items()} == replied
    made = [ids.batch_id(TENANT.name, name) for name in {*before, *beside}]
    await yard.until_planned(made)
    assert (
        await yard.state.batches.statuses([ids.batch_id(TENANT.name, name) for name in by_name])
        == {}
    )
    assert await yard.count(topology.SUBMIT_QUEUE) == 0
    figures = {"p99_ms": 1000 * _p99(before), "p99_beside_poison_ms": 1000 * _p99(beside)}
    assert max(beside.values()) < _BLOCKED_SECONDS
    return {
        "poison": len(bad),
        "good": len(beside),
        **{name: round(value) for name, value in figures.items()},
        "ratio": round(_p99(beside) / _p99(before), 2),
    }


def _undecodable(run: str, number: int) -> list[Bad]:
    """Half of them say where the answer is to go."""
    return [
        Bad(f"{run}.undecodable.{at}", body, "schema_invalid", replied=at % 2 == 0, dead=True)
        for at, body in enumerate(islice(cycle(_UNDECODABLE), number))
    ]


def _wrong(run: str, number: int) -> list[Bad]:
    """Those that can be answered are no dead letters."""
    return [
        Bad(
            f"{run}.wrong.{at}",
            json.dumps({**json.loads(submission()), **change}).encode(),
            _code_of(change),
            replied=at % 4 != 0,
            dead=at % 4 == 0,
        )
        for at, change in enumerate(islice(cycle(_WRONG), number))
    ]


def _code_of(change: dict[str, Any]) -> str:
    if "not_after" in change:
        return "expired"
    is_file = change.get("input", {}).get("kind") == "file"
    return "input_not_found" if is_file else "schema_invalid"


def _breaking(run: str, number: int) -> list[Bad]:
    return [
        Bad(f"{run}.breaking.{at}", submission(), "internal_error", replied=False, dead=True)
        for at in range(number)
    ]


@asynccontextmanager
async def _breaking_on(yard: BrokerYard, names: list[str]) -> AsyncIterator[None]:
    """The dispatcher breaks on these messages: their records are nothing that it knows."""
    keys = [f"{NAMESPACE}batch:{ids.batch_id(TENANT.name, name)}" for name in names]
    redis: Redis[str] = Redis.from_url(yard.environment["BATCHYARD_REDIS_URL"])
    await redis.mset(dict.fromkeys(keys, "no hash"))
    yield
    await redis.delete(*keys)
    await redis.aclose()


class Sender:
    """A tenant who notes when the answers come."""

    def __init__(self, exchange: AbstractExchange, reply_to: str) -> None:
        self._exchange = exchange
        self._reply_to = reply_to
        self.replies: dict[str, Any] = {}
        self._came: dict[str, float] = {}

    async def hear(self, message: AbstractIncomingMessage) -> None:
        name = message.correlation_id or ""
        self._came.setdefault(name, asyncio.get_running_loop().time())
        self.replies[name] = json.loads(message.body)

    async def send(self, run: str, good: int, bad: Sequence[Bad]) -> dict[str, float]:
        """The seconds of each good message until it was accepted; the bad ones go between them."""
        loop = asyncio.get_running_loop()
        began: dict[str, float] = {}
        publishing: list[asyncio.Task[None]] = []
        for number in range(good):
            due = loop.time() + 1 / _PER_SECOND
            first, end = (at * len(bad) // good for at in (number, number + 1))
            some = [(one.name, one.body, one.replied) for one in bad[first:end]]
            name = f"{run}.{number}"
            some.insert(len(some) // 2, (name, submission(), True))
            began[name] = loop.time()
            publishing += [asyncio.create_task(self._publish(*one)) for one in some]
            await asyncio.sleep(max(0.0, due - loop.time()))
        await asyncio.gather(*publishing)
        await eventually(lambda: began.keys() <= self.replies.keys(), 300)
        assert {self.replies[name]["status"] for name in began} == {"accepted"}
        return {name: self._came[name] - at for name, at in began.items()}

    async def _publish(self, name: str, body: bytes, is_answered: bool) -> None:
        message = to_message(name, body, self._reply_to if is_answered else None)
        await self._exchange.publish(message, topology.submit_key(TENANT.name), mandatory=True)


@asynccontextmanager
async def _sending(yard: BrokerYard, run: str) -> AsyncIterator[Sender]:
    async with await aio_pika.connect(yard.rabbitmq.url(TENANT)) as link:
        channel = await link.channel()
        replies = await channel.declare_queue(
            f"reply.{TENANT.name}.{run}",
            durable=True,
            arguments={"x-queue-type": "quorum", "x-expires": 600_000},
        )
        exchange = await channel.get_exchange(topology.SUBMIT_EXCHANGE, ensure=False)
        sender = Sender(exchange, replies.name)
        await replies.consume(sender.hear, no_ack=True)
        yield sender
        await replies.delete(if_unused=False, if_empty=False)


def _p99(seconds: dict[str, float]) -> float:
    ordered = sorted(seconds.values())
    return ordered[int(len(ordered) * 0.99)]
