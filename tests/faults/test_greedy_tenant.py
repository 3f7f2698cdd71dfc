"""A tenant that takes what it can get of the broker does not hold up the others."""

import asyncio
import json
import logging
import secrets
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel, AbstractQueue

from cli import servers
from shared.bus import topology
from shared.bus.topology import User, logins
from tests.eventually import eventually
from tests.faults.conftest import BrokerYard, submission, to_message
from tests.servers import TENANT

pytestmark = pytest.mark.timeout(600)

_ROOT = Path(__file__).parents[2]
_GREEDY = "greedy"
#: It has a machine of its own: what it computes itself is hardly taken from the servers. With less
#: than that, it would not come to its turn beside other tests.
_ELSEWHERE = 'echo 10 2>/dev/null >/proc/self/autogroup; exec nice -n 10 "$@"'
#: Round trips of the other tenant before it, and as many after it.
_WITHOUT = 40
#: The others may be slower by so much, whatever a round trip takes: the clock of a busy machine.
_NOISE_SECONDS = 0.05
_WORDS = {
    "connections": "Connection.Close",
    "channels": "number of channels opened for user 'greedy' has reached",
    "queues": "access to queue 'sub.greedy.",
    "exchanges": "access to exchange 'sub.greedy.main'",
    "bindings": "access to queue 'sub.greedy.main'",
    "dead-lettering": "access to queue 'sub.greedy.loop'",
    "large message": "larger than configured max size 4194304",
}


async def test_a_greedy_tenant_is_refused_by_name_and_others_are_as_fast_as_before(
    yard: BrokerYard,
) -> None:
    await _endure(yard, seconds=15)


@pytest.mark.on_demand
async def test_a_minute_of_a_greedy_tenant(yard: BrokerYard) -> None:
    print("greedy:", json.dumps(await _endure(yard, seconds=60)))  # noqa: T201  # what the run is for


async def _endure(yard: BrokerYard, *, seconds: float) -> dict[str, Any]:
    logging.getLogger("aiormq").setLevel(logging.CRITICAL)
    user = User(_GREEDY, secrets.token_urlsafe(16), tenant=True)
    yard.rabbitmq.import_definitions(logins([user]))
    async with _replies(yard) as (channel, replies):
        without = [await _round_trip(channel, replies) for _ in range(_WITHOUT)]
        attack = await asyncio.create_subprocess_exec(
            "bash", "-c", _ELSEWHERE, "bash", sys.executable, "-m", "tests.faults.greedy",
            yard.rabbitmq.url(user), _GREEDY, str(seconds),
            cwd=_ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        meanwhile = []
        while attack.returncode is None:
            meanwhile.append(await _round_trip(channel, replies))
            await asyncio.sleep(0)
        assert attack.stdout is not None
        report = json.loads(await attack.stdout.read())
        # Again, because the machine may have become busier by itself.
        without += [await _round_trip(channel, replies) for _ in range(_WITHOUT)]
    held = await _held(yard.rabbitmq)
    figures = {
        "without_ms": round(1000 * statistics.median(without), 1),
        "meanwhile_ms": round(1000 * statistics.median(meanwhile), 1),
        "round_trips": len(meanwhile),
        **report,
        "held_bytes": held,
    }

    assert {what: words for what, words in _WORDS.items() if words not in _said(report, what)} == {}
    assert [report["done"].get(what, 0) for what in ("queues", "exchanges", "bindings")] == [0] * 3
    assert figures["meanwhile_ms"] < 2 * figures["without_ms"] + 1000 * _NOISE_SECONDS, figures
    assert held <= 2 * topology.TENANT_QUEUE_MAX_BYTES
    return figures


def _said(report: dict[str, Any], what: str) -> str:
    return " ".join(report["refused"].get(what, []))


async def _round_trip(channel: AbstractChannel, replies: AbstractQueue) -> float:
    """Seconds from a submission to its reply."""
    exchange = await channel.get_exchange(topology.SUBMIT_EXCHANGE, ensure=False)
    name = secrets.token_hex(8)
    began = time.perf_counter()
    message = to_message(name, submission(), replies.name)
    await exchange.publish(message, topology.submit_key(TENANT.name))

    async def is_answered() -> bool:
        return await replies.get(no_ack=True, fail=False) is not None

    await eventually(is_answered, 60)
    return time.perf_counter() - began


@asynccontextmanager
async def _replies(yard: BrokerYard) -> AsyncIterator[tuple[AbstractChannel, AbstractQueue]]:
    async with await aio_pika.connect(yard.rabbitmq.url(TENANT)) as link:
        channel = await link.channel()
        queue = await channel.declare_queue(
            f"reply.{TENANT.name}.{secrets.token_hex(4)}", exclusive=True
        )
        yield channel, queue


async def _held(rabbitmq: servers.RabbitMQ) -> int:
    """The bytes in the greedy tenant's queues."""
    listed = await asyncio.to_thread(
        rabbitmq.ctl, "list_queues", "name", "message_bytes", "--formatter", "json"
    )
    queues = json.loads(listed)
    own = [queue for queue in queues if f".{_GREEDY}." in queue["name"]]
    assert {queue["name"] for queue in own} == {
        f"{kind}.{_GREEDY}.main" for kind in ("sub", "reply")
    }
    return sum(int(queue["message_bytes"] or 0) for queue in own)
