"""subscribe.py STATE.sqlite: keeps the newest state of each of the tenant's batches, forever."""

import asyncio
import json
import os
import sqlite3
import sys
from urllib.parse import unquote, urlsplit

import aio_pika

URL = os.environ["BATCHYARD_AMQP_URL"]
TENANT = unquote(urlsplit(URL).username)
# Repeats and late events change nothing: the highest sequence wins, and a final state is final.
APPLY = """
INSERT INTO batches VALUES (:source, :sequence, :type, :data)
ON CONFLICT (source) DO UPDATE SET sequence = :sequence, type = :type, data = :data
WHERE :sequence > sequence AND type NOT IN
    ('batch.completed', 'batch.failed', 'batch.expired', 'batch.cancelled')
"""


async def main(path: str) -> None:
    state = sqlite3.connect(path)
    state.execute("CREATE TABLE IF NOT EXISTS batches (source PRIMARY KEY, sequence, type, data)")
    async with await aio_pika.connect_robust(URL) as connection:
        channel = await connection.channel()
        await channel.set_qos(prefetch_count=50)
        # Ours, also while we are away. The operator has made it and bound it to our events.
        queue = await channel.get_queue(f"sub.{TENANT}.main")
        async with queue.iterator() as messages:
            async for message in messages:
                event = json.loads(message.body)
                with state:  # commit first, and ack only then
                    state.execute(APPLY, event | {"data": json.dumps(event["data"])})
                await message.ack()
                print(event["sequence"], event["type"], event["subject"], flush=True)


asyncio.run(main(sys.argv[1]))
