"""Live calls by message: a real broker, a real gateway, real doors."""

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aio_pika
import jsonschema
import pytest
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue

from shared.bus import topology
from shared.bus.live_messages import REPLY, REQUEST
from shared.ledger.tenants import change_tenant
from shared.state import State
from shared.storage import Storage
from tests.eventually import eventually
from tests.integration.gateway.conftest import LANE, Gateway, Start, running
from tests.live_replica import ANSWER, DIE, HELLO, LARGE, REFUSE, WAIT
from tests.media_host import FILE

CHAT = "/v1/chat/completions"
_SCHEMAS = Path(__file__).parents[3] / "docs/schemas"


def in_ms(seconds: float) -> int:
    return round(1000 * (time.time() + seconds))


@dataclass
class Asker:
    """A service with its login, and direct reply-to."""

    tenant: str
    channel: AbstractChannel
    direct: AbstractQueue
    answers: asyncio.Queue[AbstractIncomingMessage] = field(default_factory=asyncio.Queue)

    async def send(
        self,
        says: str = HELLO,
        *,
        seconds: float = 60,
        properties: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> None:
        question = {"model": "tiny", "messages": [{"role": "user", "content": says}]}
        asked = {
            "schema": "live.request/1",
            "endpoint": CHAT,
            "deadline_ms": in_ms(seconds),
            "body": question | dict(body or {}),
        }
        given: dict[str, Any] = {
            "type": REQUEST,
            "content_type": "application/json",
            "user_id": self.tenant,
            "correlation_id": says,
            "reply_to": self.direct.name,
            "delivery_mode": 1,
        }
        exchange = await self.channel.get_exchange(topology.LIVE_EXCHANGE, ensure=False)
        await exchange.publish(
            aio_pika.Message(
                json.dumps(asked | changes).encode(), **(given | dict(properties or {}))
            ),
            topology.live_key(self.tenant),
            mandatory=True,
        )

    async def answer(self) -> dict[str, Any]:
        """The next answer, which is as its schema says."""
        message = await asyncio.wait_for(self.answers.get(), 60)
        assert message.type == REPLY
        answer: dict[str, Any] = json.loads(message.body)
        schema = json.loads((_SCHEMAS / f"{REPLY}.json").read_text())
        jsonschema.Draft202012Validator(schema).validate(answer)
        return answer | {"to": message.correlation_id}

    async def waiting(self) -> int:
        """How many calls wait in the broker."""
        queue = await self.channel.declare_queue(topology.LIVE_QUEUE, passive=True)
        return queue.declaration_result.message_count or 0

    async def has_two_gateways(self) -> bool:
        """Whether two of them take calls."""
        queue = await self.channel.declare_queue(topology.LIVE_QUEUE, passive=True)
        return queue.declaration_result.consumer_count == 2


@asynccontextmanager
async def asking(url: str) -> AsyncIterator[Asker]:
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        direct = await channel.get_queue("amq.rabbitmq.reply-to", ensure=False)
        asker = Asker(urlsplit(url).username or "", channel, direct)
        await direct.consume(asker.answers.put, no_ack=True)
        yield asker


@pytest.fixture
async def service(gateway: Gateway) -> AsyncIterator[Asker]:
    async with asking(gateway.settings.amqp_url.get_secret_value()) as asker:
        yield asker


async def test_a_question_gets_the_engines_answer_and_nothing_of_it_is_kept(
    service: Asker, start: Start
) -> None:
    replica = await start("whole")

    await service.send()
    answer = await service.answer()

    assert (answer["status_code"], answer["to"]) == (200, HELLO)
    assert answer["body"] == json.loads(ANSWER)
    assert replica.app.request_ids == [answer["request_id"]]
    assert {"x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens"} <= answer["headers"].keys()
    assert await service.waiting() == 0


async def test_a_picture_that_a_message_names_is_fetched(
    service: Asker, start: Start, bucket: Storage
) -> None:
    replica = await start("sees-messages")
    await bucket.put(f"inbox/{service.tenant}/a.png", FILE)
    url = {"url": f"s3://{bucket.bucket}/inbox/{service.tenant}/a.png"}
    parts = [{"type": "text", "text": HELLO}, {"type": "image_url", "image_url": url}]

    await service.send(body={"messages": [{"role": "user", "content": parts}]})

    assert (await service.answer())["status_code"] == 200
    [seen] = replica.app.bodies
    shown = seen["messages"][0]["content"][1]["image_url"]["url"]
    assert base64.b64decode(shown.partition(",")[2]) == FILE


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"body": {"model": "nobody"}}, 404, "model_not_found"),
        ({"body": {"model": "my-adapter"}}, 404, "model_not_live"),
        ({"body": {"temperature": 9}}, 400, "invalid_value"),
        ({"body": {"stream": True}}, 400, "invalid_value"),
        ({"endpoint": "/v1/nothing"}, 404, "model_not_live"),
        ({"surprise": 1}, 400, "schema_invalid"),
        ({"deadline_ms": in_ms(3600)}, 400, "schema_invalid"),
        ({"properties": {"type": "live.request.v2"}}, 400, "schema_invalid"),
        ({"properties": {"delivery_mode": 2}}, 400, "schema_invalid"),
        ({"properties": {"content_encoding": "br"}}, 400, "unsupported_media"),
    ],
)
async def test_what_cannot_run_is_refused_as_over_http(
    service: Asker, changes: dict[str, Any], status: int, code: str
) -> None:
    await service.send(**changes)
    answer = await service.answer()

    assert (answer["status_code"], answer["body"]["error"]["code"]) == (status, code)


async def test_what_the_engine_refuses_and_what_no_message_can_carry_is_an_error(
    service: Asker, start: Start
) -> None:
    await start("refuses")

    errors = {}
    for says in (REFUSE, LARGE):
        await service.send(says)
        answer = await service.answer()
        errors[answer["to"]] = answer["status_code"], answer["body"]["error"]["code"]

    assert errors == {REFUSE: (400, None), LARGE: (400, "answer_too_large")}


async def test_a_call_whose_deadline_has_passed_does_not_run(service: Asker, start: Start) -> None:
    replica = await start("late")

    await service.send(seconds=-1)
    await service.send(DIE, deadline_ms=int(time.time()))
    answers = [await service.answer() for _ in range(2)]

    assert {(answer["to"], answer["status_code"]) for answer in answers} == {
        (HELLO, 504),
        (DIE, 504),
    }
    assert {answer["body"]["error"]["code"] for answer in answers} == {"deadline_exceeded"}
    assert replica.app.bodies == []
    assert service.answers.empty()


async def test_a_call_leaves_its_engine_at_its_deadline(service: Asker, start: Start) -> None:
    replica = await start("slow")

    await service.send(WAIT, seconds=0.7)
    answer = await service.answer()

    assert answer["status_code"] == 504
    assert len(replica.app.bodies) == 1
    await eventually(lambda: replica.entrance.seated == 0 and replica.calls.running == 0)


async def test_a_cold_model_is_asked_for(service: Asker, gateway_state: State) -> None:
    await service.send()
    answer = await service.answer()

    assert (answer["status_code"], answer["body"]["error"]["code"]) == (503, "engine_starting")
    assert answer["headers"]["retry-after"] == "10"
    assert await gateway_state.doors.are_wanted(LANE)


async def test_a_call_that_kills_engines_is_answered_too(service: Asker, start: Start) -> None:
    for number in range(2):
        await start(f"dies-{number}")
    await asyncio.sleep(0.6)

    await service.send(DIE)
    answer = await service.answer()

    assert (answer["status_code"], answer["body"]["error"]["code"]) == (500, "engine_died")


async def test_messages_have_the_tenants_limits_of_live_calls(
    service: Asker, start: Start, gateway_state: State, bucket: Storage
) -> None:
    replica = await start("limits")
    limits = {"live_calls": 1, "live_tokens_per_minute": 3000, "live_requests_per_minute": 3}
    await change_tenant(gateway_state, bucket, service.tenant, limits)
    try:
        await service.send(WAIT)
        await eventually(lambda: replica.calls.running == 1)
        await service.send()
        beside = await service.answer()
        replica.app.may_end.set()
        assert (await service.answer())["status_code"] == 200
        await eventually(lambda: replica.calls.running == 0)
        after = []
        for tokens in (2900, 10, 10, 10):
            await service.send(body={"max_tokens": tokens})
            after.append(await service.answer())
    finally:
        await change_tenant(gateway_state, bucket, service.tenant, {}, unset=tuple(limits))

    codes = [one["body"].get("error", {}).get("code") for one in (beside, *after)]
    assert codes[:2] == ["live_call_limit_exceeded", "rate_limit_exceeded"]
    assert [one["status_code"] for one in after] == [429, 200, 200, 429]
    assert "tokens of live requests" in after[0]["body"]["error"]["message"]
    assert "live requests per min" in after[3]["body"]["error"]["message"]
    assert "retry-after" in after[3]["headers"]


async def test_whoever_cannot_be_answered_is_not_served(service: Asker, start: Start) -> None:
    replica = await start("unanswerable")

    for strange in (None, "reply.someone.main", topology.DIRECT_REPLY):
        await service.send(WAIT, properties={"reply_to": strange})
    await service.send(WAIT, properties={"user_id": None})
    await service.send()

    assert (await service.answer())["to"] == HELLO
    assert len(replica.app.bodies) == 1
    assert await service.waiting() == 0


async def test_a_gateway_that_ends_gives_its_calls_back(
    service: Asker, gateway: Gateway, start: Start
) -> None:
    replica = await start("handed-back")

    with running(gateway.settings):
        # Both gateways take their share.
        await eventually(service.has_two_gateways)
        for _ in range(4):
            await service.send(WAIT)
        await eventually(lambda: len(replica.app.bodies) == 4)

    await eventually(lambda: len(replica.app.bodies) > 4 and replica.calls.running == 4)
    replica.app.may_end.set()
    assert [(await service.answer())["status_code"] for _ in range(4)] == [200] * 4
