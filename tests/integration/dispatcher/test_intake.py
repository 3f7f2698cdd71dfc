import gzip
import json
import secrets
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import aio_pika
import pytest
import structlog
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue
from aiormq.abc import ChannelFrame
from pamqp import commands as spec
from pamqp.base import Frame
from pamqp.body import ContentBody
from pamqp.header import ContentHeader
from pamqp.heartbeat import Heartbeat
from redis.asyncio import Redis

from cli import servers
from dispatcher.intake import Intake
from shared import ids, topology
from shared.bus import Bus
from shared.errors import NotFoundError
from shared.lifecycle import Status
from shared.messages import MAX_BODY_BYTES, READY, SUBMIT
from shared.state import FileRecord, State
from shared.storage import Storage
from shared.submission import Manifest, accept, manifest_key
from tests.eventually import eventually
from tests.integration.dispatcher.conftest import CHAT, line, lines

_SERVICE = "the-gateway"


class Door:
    """A tenant at the broker, and the intake behind it."""

    def __init__(
        self,
        channel: AbstractChannel,
        bare: AbstractChannel,
        replies: AbstractQueue,
        tenant: str,
    ) -> None:
        self.tenant = tenant
        self._channel = channel
        self._bare = bare
        self._replies = replies
        #: Deliveries that were settled.
        self.settled: list[AbstractIncomingMessage] = []
        self.deliveries = 0

    def serve(self, intake: Intake) -> Any:
        async def take(message: AbstractIncomingMessage) -> None:
            self.deliveries += 1
            await intake.take(message)
            self.settled.append(message)

        return take

    async def send(self, body: bytes, **properties: Any) -> str:
        """Publish; returns the id of the batch that the message stands for."""
        message_id = f"m-{secrets.token_hex(4)}"
        told = {
            "message_id": message_id,
            "type": SUBMIT,
            "user_id": self.tenant,
            "reply_to": self._replies.name,
            "delivery_mode": aio_pika.DeliveryMode.PERSISTENT,
            **properties,
        }
        exchange = await self._channel.get_exchange(topology.SUBMIT_EXCHANGE)
        await exchange.publish(
            aio_pika.Message(body, **told), f"submit.v1.{self.tenant}", mandatory=True
        )
        return ids.batch_id(self.tenant, told["message_id"] or "")

    async def send_bare(self, body: bytes, **properties: Any) -> None:
        """Publish with these properties only: left to itself, the client adds a message id."""
        # The interface that it has by its type lacks the queue of what is to be sent.
        channel: Any = await self._bare.get_underlay_channel()
        frames: list[Frame | ContentHeader | ContentBody | Heartbeat] = [
            spec.Basic.Publish(exchange=topology.SUBMIT_EXCHANGE, routing_key="submit.v1.x"),
            ContentHeader(body_size=len(body), properties=spec.Basic.Properties(**properties)),
            ContentBody(body),
        ]
        await channel.write_queue.put(
            ChannelFrame.marshall(channel_number=channel.number, frames=frames)
        )

    async def settle(self, count: int = 1) -> None:
        """Return when so many deliveries were acked or rejected."""
        await eventually(lambda: len(self.settled) >= count, timeout=30)

    async def reply(self) -> tuple[dict[str, Any], AbstractIncomingMessage]:
        """The next reply, which has come by the time that its message is settled."""
        message = await self._replies.get(timeout=10)
        assert message is not None
        await message.ack()
        return json.loads(message.body), message

    async def dead(self) -> AbstractIncomingMessage:
        """The next dead letter; waits for it, since the broker forwards on its own."""
        queue = await self._channel.get_queue(topology.DEAD_QUEUE)
        found: list[AbstractIncomingMessage] = []

        async def has_come() -> bool:
            message = await queue.get(fail=False, no_ack=True)
            found.extend([message] if message else [])
            return bool(found)

        await eventually(has_come)
        return found[0]

    async def count(self, queue: str) -> int:
        """How many messages wait there."""
        declared = await self._channel.declare_queue(queue, passive=True)
        return declared.declaration_result.message_count or 0

    async def queue(self, name: str) -> str:
        """The name of a new queue."""
        made = await self._channel.declare_queue(f"{name}.{secrets.token_hex(4)}", exclusive=True)
        return made.name

    async def has_no_reply(self) -> bool:
        return await self._replies.get(fail=False) is None


@pytest.fixture
async def door(bus: Bus, amqp_url: str) -> AsyncIterator[Door]:
    tenant = urlsplit(amqp_url).username or ""
    async with await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        replies = await channel.declare_queue(
            f"reply.{tenant}.{secrets.token_hex(4)}", exclusive=True
        )
        bare = await connection.channel(publisher_confirms=False)
        yield Door(channel, bare, replies, tenant)


@pytest.fixture
async def acme(door: Door, bus: Bus, state: State, storage: Storage) -> Door:
    """The tenant, whom the intake serves."""
    await bus.consume(door.serve(_intake(state, storage, bus)))
    return door


async def test_an_inline_message_becomes_a_batch(
    acme: Door, state: State, storage: Storage
) -> None:
    batch_id = await acme.send(
        _body(completion_window="2h", priority=7, metadata={"k": "ü"}), correlation_id="c-1"
    )
    await acme.settle()

    record = await state.batches.get(batch_id)
    reply, message = await acme.reply()
    assert reply == {
        "status": "accepted",
        "duplicate": False,
        "batch": {
            "id": batch_id,
            "object": "batch",
            "status": "validating",
            "created_at": record.number("created_at"),
            "expires_at": record.number("created_at") + 7200,
        },
    }
    assert (message.correlation_id, message.type) == ("c-1", "batch.reply.v1")
    assert record.status is Status.VALIDATING
    assert (record.tenant, record.fields["priority"]) == (acme.tenant, "7")
    assert record.fields["correlation_id"] == "c-1"
    assert record.to_openai().metadata == {"k": "ü"}
    body = await storage.get(record.fields["key"], etag=record.fields["etag"])
    assert [json.loads(text) for text in body.splitlines()] == [json.loads(line("a"))]
    file = await state.files.get(acme.tenant, record.fields["input_file_id"])
    assert (file.purpose, file.bytes) == ("batch", len(body))
    assert await acme.count(topology.SUBMIT_QUEUE) == 0


async def test_a_message_may_ask_for_small_results_in_the_last_event(
    acme: Door, state: State
) -> None:
    asked = await acme.send(_body(deliver={"results": True}))
    plain = await acme.send(_body(deliver={"results": False}))
    await acme.settle(2)

    assert "deliver_results" in (await state.batches.get(asked)).fields
    assert "deliver_results" not in (await state.batches.get(plain)).fields


async def test_a_compressed_message_becomes_a_batch(acme: Door, state: State) -> None:
    batch_id = await acme.send(gzip.compress(_body()), content_encoding="gzip")
    await acme.settle()

    assert (await state.batches.get(batch_id)).status is Status.VALIDATING


async def test_an_object_of_the_tenants_own_becomes_a_batch(
    acme: Door, state: State, storage: Storage
) -> None:
    given = await _upload(acme, storage)

    batch_id = await acme.send(_body(input=given))
    await acme.settle()

    record = await state.batches.get(batch_id)
    assert (record.fields["bucket"], record.fields["key"]) == (storage.bucket, given["key"])
    assert (record.fields["etag"], record.number("size")) == (given["etag"], given["size"])
    assert (await state.files.get(acme.tenant, record.fields["input_file_id"])).owned is False


async def test_a_file_that_was_uploaded_becomes_a_batch(acme: Door, state: State) -> None:
    file = _file(acme.tenant)
    await state.files.create(file)

    batch_id = await acme.send(_body(input={"kind": "file", "file_id": file.id}))
    await acme.settle()

    record = await state.batches.get(batch_id)
    assert record.fields["input_file_id"] == file.id
    assert record.fields["key"] == file.key


async def test_not_after_ends_the_window_early(acme: Door, state: State) -> None:
    moment = datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=5)

    batch_id = await acme.send(_body(not_after=moment.isoformat()))
    await acme.settle()

    assert (await state.batches.get(batch_id)).number("expires_at") == int(moment.timestamp())


async def test_a_repeated_message_is_the_same_batch(acme: Door, state: State) -> None:
    batch_id = await acme.send(_body(), message_id="twice")
    await acme.settle()
    first = (await state.batches.get(batch_id)).fields

    await acme.send(_body(), message_id="twice")
    await acme.settle(2)

    assert [(await acme.reply())[0]["duplicate"] for _ in range(2)] == [False, True]
    assert (await state.batches.get(batch_id)).fields == first
    assert (await state.batches.page(acme.tenant, after=None, limit=9))[0][0].id == batch_id


async def test_a_repeat_is_met_though_its_input_is_gone_and_its_time_has_passed(
    acme: Door, state: State, storage: Storage
) -> None:
    given = await _upload(acme, storage)
    moment = datetime.now(UTC) + timedelta(seconds=2)
    body = _body(input=given, not_after=moment.isoformat())
    batch_id = await acme.send(body, message_id="again")
    await acme.settle()
    await storage.remove([given["key"]])
    await eventually(lambda: datetime.now(UTC) > moment)

    await acme.send(body, message_id="again")
    await acme.settle(2)

    await acme.reply()
    reply, _ = await acme.reply()
    assert (reply["status"], reply["duplicate"]) == ("accepted", True)
    assert reply["batch"]["id"] == batch_id


async def test_another_body_under_the_same_id_is_refused_and_spoils_nothing(
    acme: Door, state: State, storage: Storage
) -> None:
    batch_id = await acme.send(_body(), message_id="twice")
    await acme.settle()
    record = await state.batches.get(batch_id)
    before = await storage.get(record.fields["key"])

    await acme.send(_body(custom_id="other"), message_id="twice")
    await acme.settle(2)

    await acme.reply()
    reply, _ = await acme.reply()
    assert (reply["status"], reply["error"]["code"]) == ("rejected", "idempotency_conflict")
    assert await state.batches.get(batch_id) == record
    assert await storage.get(record.fields["key"], etag=record.fields["etag"]) == before
    assert len([key for key in await storage.keys(f"batches/{batch_id}/") if "input" in key]) == 1


@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"surprise": 1}, "schema_invalid", "surprise"),
        ({"priority": 10}, "schema_invalid", "priority"),
        ({"completion_window": "soon"}, "schema_invalid", "completion_window"),
        ({"input": {"kind": "mail"}}, "schema_invalid", "input.kind"),
        ({"input": {"kind": "inline", "requests": []}}, "schema_invalid", "input.requests"),
        ({"custom_id": ""}, "schema_invalid", "input.requests[0].custom_id"),
        ({"endpoint": "/v1/moderations"}, "schema_invalid", "endpoint"),
        ({"not_after": "2020-01-01T00:00:00Z"}, "expired", "not_after"),
        ({"input": {"kind": "file", "file_id": "file-x"}}, "schema_invalid", "input.file_id"),
        ({"metadata": {"k": "x" * MAX_BODY_BYTES}}, "too_large", None),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else str(value),
)
async def test_a_message_that_breaks_the_contract_is_answered_and_acked(
    changes: dict[str, Any], code: str, param: str | None, acme: Door, state: State
) -> None:
    batch_id = await acme.send(_body(**changes))
    await acme.settle()

    await _assert_refused(acme, state, batch_id, code, param)


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b""])
async def test_a_body_that_is_no_submission_is_answered(
    body: bytes, acme: Door, state: State
) -> None:
    batch_id = await acme.send(body)
    await acme.settle()

    reply = await _assert_refused(acme, state, batch_id, "schema_invalid", ...)
    assert reply["error"]["message"]


async def test_an_unknown_encoding_is_refused(acme: Door, state: State) -> None:
    batch_id = await acme.send(_body(), content_encoding="br")
    await acme.settle()

    await _assert_refused(acme, state, batch_id, "unsupported_media", None)


async def test_a_file_of_another_tenant_does_not_exist(acme: Door, state: State) -> None:
    file = _file("globex")
    await state.files.create(file)

    batch_id = await acme.send(_body(input={"kind": "file", "file_id": file.id}))
    await acme.settle()

    reply = await _assert_refused(acme, state, batch_id, "schema_invalid", "input.file_id")
    assert f"No such File object: {file.id}" in reply["error"]["message"]


async def test_a_file_of_another_purpose_is_no_input(acme: Door, state: State) -> None:
    file = _file(acme.tenant)._replace(purpose="batch_output")
    await state.files.create(file)

    batch_id = await acme.send(_body(input={"kind": "file", "file_id": file.id}))
    await acme.settle()

    await _assert_refused(acme, state, batch_id, "schema_invalid", "input.file_id")


@pytest.mark.parametrize(
    "change",
    [
        {"bucket": "another"},
        {"key": "inbox/globex/in.jsonl"},
        {"key": "files/1"},
        {"key": "inbox/{tenant}/../globex/in.jsonl"},
        {"key": "inbox/{tenant}/./../globex/in.jsonl"},
    ],
    ids=str,
)
async def test_objects_outside_of_the_tenants_prefix_are_never_read(
    change: dict[str, str], acme: Door, state: State, storage: Storage
) -> None:
    theirs = await storage.put("inbox/globex/in.jsonl", lines(1))
    given = await _upload(acme, storage)
    given |= {name: text.format(tenant=acme.tenant) for name, text in change.items()}
    given |= {"etag": theirs.etag, "size": theirs.size}

    batch_id = await acme.send(_body(input=given))
    await acme.settle()

    await _assert_refused(acme, state, batch_id, "schema_invalid", "input.key")


@pytest.mark.parametrize("change", [{"etag": "0" * 32}, {"size": 1}])
async def test_an_object_that_is_not_as_described_is_refused(
    change: dict[str, Any], acme: Door, state: State, storage: Storage
) -> None:
    given = await _upload(acme, storage)

    batch_id = await acme.send(_body(input={**given, **change}))
    await acme.settle()

    await _assert_refused(acme, state, batch_id, "input_changed", "input.etag")


async def test_an_object_that_does_not_exist_is_refused(
    acme: Door, state: State, storage: Storage
) -> None:
    given = await _upload(acme, storage)
    await storage.remove([given["key"]])

    batch_id = await acme.send(_body(input=given))
    await acme.settle()

    await _assert_refused(acme, state, batch_id, "schema_invalid", "input.key")


@pytest.mark.parametrize(
    ("body", "properties"),
    [
        (b"anything", {"message_id": "not allowed: spaces"}),
        (b"anything", {"user_id": None}),
        (b"anything", {"type": None}),
        (b"anything", {"type": "batch.dance.v1"}),
    ],
    ids=["odd id", "no user", "no type", "unknown type"],
)
async def test_a_message_that_cannot_be_answered_is_a_dead_letter_as_it_came(
    body: bytes, properties: dict[str, Any], acme: Door, state: State
) -> None:
    await acme.send(body, **properties)
    await acme.settle()

    assert (await acme.dead()).body == body
    assert await acme.has_no_reply()
    assert (await state.batches.page(acme.tenant, after=None, limit=9))[0] == []


async def test_a_message_without_an_id_is_a_dead_letter_as_it_came(acme: Door) -> None:
    await acme.send_bare(_body(), message_type=SUBMIT, user_id=acme.tenant)
    await acme.settle()

    dead = await acme.dead()
    assert (dead.body, dead.message_id) == (_body(), None)


async def test_garbage_is_a_dead_letter_as_it_came(acme: Door) -> None:
    await acme.send_bare(b"\x00\xffgarbage")
    await acme.settle()

    assert (await acme.dead()).body == b"\x00\xffgarbage"


async def test_a_ready_message_of_a_tenant_is_refused(
    acme: Door, state: State, storage: Storage
) -> None:
    manifest = _manifest(acme.tenant)
    await storage.create(manifest_key(manifest.id), b"never read")

    await acme.send(json.dumps({"batch_id": manifest.id}).encode(), type=READY)
    await acme.settle()

    assert (await acme.dead()).type == READY
    with pytest.raises(NotFoundError):
        await state.batches.get(manifest.id)


async def test_a_ready_message_wakes_the_dispatcher(
    door: Door, bus: Bus, state: State, storage: Storage
) -> None:
    await bus.consume(door.serve(_intake(state, storage, bus, service_user=door.tenant)))
    manifest = _manifest(door.tenant)
    await accept(state, storage, manifest)
    record = await state.batches.get(manifest.id)

    async with state.bells("dispatcher") as bells:
        await door.send(json.dumps({"batch_id": manifest.id}).encode(), type=READY)
        await door.settle()

        assert await bells.wait(10)
    assert await state.batches.get(manifest.id) == record


async def test_a_batch_whose_record_was_lost_is_made_again_from_its_manifest(
    door: Door,
    bus: Bus,
    state: State,
    storage: Storage,
    redis: "Redis[str]",
    namespace: str,
) -> None:
    await bus.consume(door.serve(_intake(state, storage, bus, service_user=door.tenant)))
    manifest = _manifest(door.tenant)
    await accept(state, storage, manifest)
    before = await state.batches.get(manifest.id)
    await redis.delete(*[key async for key in redis.scan_iter(match=f"{namespace}*")])

    await door.send(json.dumps({"batch_id": manifest.id}).encode(), type=READY)
    await door.settle()

    assert (await state.batches.get(manifest.id)).fields == before.fields
    assert await state.batches.in_status(Status.VALIDATING) == [manifest.id]


@pytest.mark.parametrize("body", [b"{", b"[]", b"{}", b"7"])
async def test_a_ready_message_without_a_batch_is_a_dead_letter(
    body: bytes, door: Door, bus: Bus, state: State, storage: Storage
) -> None:
    await bus.consume(door.serve(_intake(state, storage, bus, service_user=door.tenant)))

    await door.send(body, type=READY)
    await door.settle()

    assert (await door.dead()).body == body


async def test_no_reply_goes_to_the_queue_of_somebody_else(acme: Door, state: State) -> None:
    names = ("reply.globex", f"sub.{acme.tenant}", f"reply.{acme.tenant}x")
    theirs = [await acme.queue(name) for name in names]
    targets = [*theirs, topology.DEAD_QUEUE, topology.SUBMIT_QUEUE]

    for target in targets:
        await acme.send(_body(), reply_to=target)
        await acme.send(b"{", reply_to=target)
    await acme.settle(2 * len(targets))

    assert [await acme.count(target) for target in targets] == [0] * len(targets)
    assert len(acme.settled) == 2 * len(targets)
    assert len((await state.batches.page(acme.tenant, after=None, limit=99))[0]) == len(targets)


async def test_a_reply_queue_that_is_gone_stops_nothing(acme: Door, state: State) -> None:
    batch_id = await acme.send(_body(), reply_to=f"reply.{acme.tenant}.gone")
    await acme.settle()

    assert (await state.batches.get(batch_id)).status is Status.VALIDATING
    assert await acme.count(topology.SUBMIT_QUEUE) == 0


async def test_a_message_waits_for_redis_without_using_up_its_deliveries(
    door: Door, bus: Bus, storage: Storage, redis_server: servers.Redis
) -> None:
    state = State(redis_server.url)
    redis_server.kill()
    with structlog.testing.capture_logs() as logs:
        await bus.consume(door.serve(_intake(state, storage, bus)))
        batch_ids = [await door.send(_body()) for _ in range(3)]
        # The client's own patience is over by then, more than once.
        await eventually(lambda: _retries(logs) >= 4, timeout=30)

        redis_server.start()
        await door.settle(3)

    assert door.deliveries == 3
    statuses = await state.batches.statuses(batch_ids)
    assert list(statuses.values()) == [Status.VALIDATING] * 3
    assert [(await door.reply())[0]["status"] for _ in range(3)] == ["accepted"] * 3
    assert await door.count(topology.SUBMIT_QUEUE) == await door.count(topology.DEAD_QUEUE) == 0
    await state.close()


async def test_a_message_in_hand_goes_back_when_the_dispatcher_dies(
    door: Door, amqp_url: str, storage: Storage, redis_server: servers.Redis, bus: Bus
) -> None:
    state = State(redis_server.url)
    redis_server.kill()
    doomed = Bus(amqp_url)
    await doomed.connect()
    await doomed.consume(door.serve(_intake(state, storage, doomed)))
    batch_id = await door.send(_body())
    await eventually(lambda: door.deliveries == 1)
    await doomed.close()

    redis_server.start()
    await bus.consume(door.serve(_intake(state, storage, bus)))
    await eventually(lambda: door.deliveries == 2)
    await door.settle()

    assert (await state.batches.get(batch_id)).status is Status.VALIDATING
    await state.close()


def _intake(state: State, storage: Storage, bus: Bus, *, service_user: str = _SERVICE) -> Intake:
    return Intake(state, storage, bus, service_user=service_user, tenant_prefix="inbox/{tenant}/")


def _body(*, custom_id: str = "a", **changes: Any) -> bytes:
    request = {**json.loads(line("a")), "custom_id": custom_id}
    body = {
        "schema": "batch.submit/1",
        "endpoint": CHAT,
        "input": {"kind": "inline", "requests": [request]},
        **changes,
    }
    return json.dumps(body).encode()


async def _upload(door: Door, storage: Storage) -> dict[str, Any]:
    """An input of the tenant's own, described as a message does."""
    stored = await storage.put(f"inbox/{door.tenant}/{secrets.token_hex(4)}.jsonl", lines(3))
    return {
        "kind": "s3",
        "bucket": storage.bucket,
        "key": stored.key,
        "etag": stored.etag,
        "size": stored.size,
    }


def _file(tenant: str) -> FileRecord:
    file_id = ids.new_file_id()
    return FileRecord(
        file_id, tenant, 9, 1, None, "in.jsonl", "batch", "bucket", f"files/{file_id}", "e"
    )


def _manifest(tenant: str) -> Manifest:
    message_id = f"m-{secrets.token_hex(4)}"
    return Manifest(
        id=ids.batch_id(tenant, message_id),
        tenant=tenant,
        message_id=message_id,
        fingerprint="print",
        door="http",
        endpoint=CHAT,
        input_file_id="file-1",
        bucket="b",
        key="k",
        etag="e",
        size=9,
        completion_window="24h",
        created_at=1_795_165_000,
        expires_at=1_795_251_400,
    )


async def _assert_refused(
    door: Door, state: State, batch_id: str, code: str, param: object
) -> dict[str, Any]:
    """Answered, acked, and nothing came of it; `...` stands for any param."""
    reply, message = await door.reply()
    assert reply["status"] == "rejected"
    assert reply["error"]["type"] == "invalid_request_error"
    assert reply["error"]["code"] == code
    assert param is ... or reply["error"]["param"] == param
    assert message.correlation_id == door.settled[0].message_id
    with pytest.raises(NotFoundError):
        await state.batches.get(batch_id)
    assert await door.count(topology.SUBMIT_QUEUE) == await door.count(topology.DEAD_QUEUE) == 0
    return reply


def _retries(logs: list[Any]) -> int:
    return sum(entry["event"] == "stamina.retry_scheduled" for entry in logs)
