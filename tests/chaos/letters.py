"""The operator of a run, who reads dead letters and drops them."""

import aio_pika

from shared.bus import dead_letters, topology
from tests.chaos.fleet import ChaosFleet
from tests.chaos.journal import Journal


async def drop_letters(fleet: ChaosFleet, journal: Journal) -> None:
    """Record the sender and the reason of each dead letter before it is dropped."""
    async with await aio_pika.connect(fleet.service_amqp_url, timeout=60) as connection:
        channel = await connection.channel()
        queue = await channel.declare_queue(topology.DEAD_QUEUE, passive=True)
        while message := await queue.get(fail=False, timeout=60):
            letter = dead_letters.read(message, service_user=fleet.service_user)
            codes = [reason.code for reason in letter.reasons]
            journal.note("letter", key=letter.properties.get("message_id"), codes=codes)
            await message.ack()
