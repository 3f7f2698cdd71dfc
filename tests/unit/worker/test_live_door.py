import asyncio
import json
import socket

import httpx

from shared.doors import SALT_HEADER, TENANT_HEADER
from tests.eventually import eventually
from tests.live_replica import ANSWER, ENDLESS, WAIT, Replica, a_door, a_replica

CHAT = "/v1/chat/completions"


def headers(replica: Replica) -> dict[str, str]:
    return {
        "authorization": f"Bearer {replica.door.token}",
        TENANT_HEADER.decode(): "acme",
        SALT_HEADER.decode(): "salt",
        "x-request-id": f"call-{len(replica.app.bodies)}",
    }


def body(says: str, *, stream: bool) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": says}], "stream": stream}).encode()


async def test_doors_that_open_at_the_same_time_have_ports_of_their_own() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        ports = free.getsockname()[1], 65_535
    one, other = a_door(), a_door()

    # Neither has served yet.
    doors = [await one.open("r1", "127.0.0.1", ports), await other.open("r2", "127.0.0.1", ports)]

    try:
        assert doors[0].port != doors[1].port
    finally:
        await one.close()
        await other.close()


async def test_a_client_that_does_not_read_holds_no_call_of_a_dead_core() -> None:
    async with a_replica() as replica:
        text = body(ENDLESS, stream=True)
        told = {**headers(replica), "content-length": str(len(text))}
        head = "".join(f"{name}: {value}\r\n" for name, value in told.items())
        _, writer = await asyncio.open_connection(replica.door.host, replica.door.port, limit=1)
        writer.write(f"POST {CHAT} HTTP/1.1\r\nhost: door\r\n{head}\r\n".encode() + text)
        url = f"http://{replica.door.host}:{replica.door.port}{CHAT}"
        async with httpx.AsyncClient(timeout=60) as client:
            await eventually(lambda: replica.entrance.seated == 1)
            other = asyncio.create_task(
                client.post(url, content=body(WAIT, stream=False), headers=headers(replica))
            )
            await eventually(lambda: replica.entrance.seated == 2)
            replica.client.errored = True

            ending = asyncio.create_task(replica.calls.end_dead(1.0))
            replica.app.may_end.set()

            # Who reads has its answer.
            assert (await other).content == ANSWER
            await asyncio.wait_for(ending, 60)
        assert replica.calls.running == 0
        assert replica.entrance.seated == 0
        writer.close()


async def test_a_call_may_leave_out_what_openai_lets_it_leave_out() -> None:
    image = {"type": "input_image", "image_url": "data:,"}
    asked = {"model": "m", "input": [{"role": "user", "content": [image]}]}

    async with a_replica() as replica:
        url = f"http://{replica.door.host}:{replica.door.port}/v1/responses"
        async with httpx.AsyncClient(timeout=60) as client:
            answered = await client.post(url, json=asked, headers=headers(replica))

        assert answered.content == ANSWER
        [body] = replica.app.bodies
    assert body["input"][0]["content"] == [{**image, "detail": "auto"}]
