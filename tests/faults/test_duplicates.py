"""Messages that are repeated, some of them with another body under the same id."""

import asyncio
import json
import os
import random
import secrets

import aio_pika
import pytest

from shared import ids
from shared.bus import topology
from tests.eventually import eventually
from tests.faults.conftest import BrokerYard, submission, to_message
from tests.servers import TENANT

pytestmark = pytest.mark.timeout(3600)
_MESSAGES = int(os.environ.get("DUPLICATED_MESSAGES", "10000"))
_MAX_TIMES = 5
#: One message in this many is repeated with another body.
_CONFLICTS_EVERY = 100
_AT_ONCE = 200


async def test_messages_that_come_again_make_one_batch_each_and_conflicts_are_reported(
    yard: BrokerYard,
) -> None:
    await _send_again_and_again(yard, messages=100)


@pytest.mark.on_demand
async def test_ten_thousand_messages_that_come_again_make_as_many_batches(yard: BrokerYard) -> None:
    sent = await _send_again_and_again(yard, messages=_MESSAGES)

    print(f"bus: {sent} messages of {_MESSAGES} ids, as many batches")  # noqa: T201


async def _send_again_and_again(yard: BrokerYard, *, messages: int) -> int:
    """Returns how many were sent."""
    run, dice = secrets.token_hex(4), random.Random(7)
    reply_to = f"reply.{TENANT.name}.{run}"
    names = [f"{run}.{number}" for number in range(messages)]
    again = [name for name in names for _ in range(dice.randrange(_MAX_TIMES))]
    conflicts = names[::_CONFLICTS_EVERY]
    dice.shuffle(again)
    async with await aio_pika.connect(yard.rabbitmq.url(TENANT)) as link:
        channel = await link.channel()
        await channel.declare_queue(
            reply_to, durable=True, arguments={"x-queue-type": "quorum", "x-expires": 3_600_000}
        )
        exchange = await channel.get_exchange(topology.SUBMIT_EXCHANGE, ensure=False)

        async def publish(name: str, body: bytes, reply_to: str | None = None) -> None:
            message = to_message(name, body, reply_to)
            await exchange.publish(message, topology.submit_key(TENANT.name), mandatory=True)

        for some in (*_chunks(names), *_chunks(again)):
            await asyncio.gather(*(publish(name, submission()) for name in some))
        # Behind what they contradict.
        await eventually(yard.is_idle, 3000)
        for name in conflicts:
            await publish(name, submission().replace(b'"custom_id"', b' "custom_id"'), reply_to)
            await publish(name, submission().replace(b'"a"', b'"b"'), reply_to)

    async def are_answered() -> bool:
        return await yard.count(reply_to) == 2 * len(conflicts)

    await eventually(are_answered, 600)
    replies = [json.loads(message.body) for message in await yard.taken(reply_to)]
    # The same with other blanks is no other message.
    assert sorted(reply["status"] for reply in replies) == sorted(
        ["accepted", "rejected"] * len(conflicts)
    )
    rejected = [reply for reply in replies if reply["status"] == "rejected"]
    assert {reply["error"]["code"] for reply in rejected} == {"idempotency_conflict"}
    found = await yard.state.batches.statuses([ids.batch_id(TENANT.name, name) for name in names])
    assert len(found) == messages
    # Kept for whoever runs the broker, and nothing else is.
    assert len(await yard.taken(topology.DEAD_QUEUE)) == len(conflicts)
    return len(names) + len(again) + 2 * len(conflicts)


def _chunks(names: list[str]) -> list[list[str]]:
    return [names[first : first + _AT_ONCE] for first in range(0, len(names), _AT_ONCE)]
