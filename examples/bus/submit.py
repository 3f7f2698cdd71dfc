"""submit.py REQUESTS.jsonl [MESSAGE_ID]: publishes a batch, repeatedly until it is answered."""

import asyncio
import json
import os
import sys
import uuid
from pathlib import Path
from urllib.parse import unquote, urlsplit

import aio_pika

URL = os.environ["BATCHYARD_AMQP_URL"]
TENANT = unquote(urlsplit(URL).username)


async def submit(body: dict, message_id: str) -> dict:
    """The reply; raises what RabbitMQ or the network says while there is none."""
    async with await aio_pika.connect(URL, timeout=10) as connection:
        # With confirms, and with an error if no queue takes the message.
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        answered = asyncio.get_running_loop().create_future()
        replies = await channel.get_queue("amq.rabbitmq.reply-to", ensure=False)
        await replies.consume(answered.set_result, no_ack=True)
        message = aio_pika.Message(
            json.dumps(body).encode(),
            type="batch.submit.v1",
            message_id=message_id,  # the same each time: it is the same batch
            user_id=TENANT,  # the broker checks it
            content_type="application/json",
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            reply_to="amq.rabbitmq.reply-to",
        )
        exchange = await channel.get_exchange("batch.submit", ensure=False)
        await exchange.publish(message, f"submit.v1.{TENANT}", mandatory=True, timeout=10)
        return json.loads((await asyncio.wait_for(answered, 30)).body)


async def main(requests: list, message_id: str = str(uuid.uuid4())) -> None:
    body = {"schema": "batch.submit/1", "endpoint": requests[0]["url"]}
    body["input"] = {"kind": "inline", "requests": requests}
    for pause in (1, 2, 4, 8, 16, 32, 0):  # back off: the queue may be full, the broker away
        try:
            reply = await submit(body, message_id)
            break
        except (aio_pika.exceptions.AMQPError, OSError, TimeoutError) as error:
            print(f"not confirmed, the same again in {pause} s: {error!r}", file=sys.stderr)
            await asyncio.sleep(pause)
    else:
        sys.exit(f"gave up; try again with the same message id: {message_id}")
    print(json.dumps(reply))
    sys.exit(reply["status"] != "accepted")


path, *message_id = sys.argv[1:]
asyncio.run(main([json.loads(line) for line in Path(path).read_bytes().splitlines()], *message_id))
