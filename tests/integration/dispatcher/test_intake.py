import asyncio
import gzip
import hashlib
import io
import json
import secrets
import struct
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aio_pika
import pytest
import structlog
import yaml
from aio_pika.abc import AbstractIncomingMessage
from minio.versioningconfig import VersioningConfig
from redis.asyncio import Redis

from cli import servers
from dispatcher.intake import Intake
from shared import ids
from shared.bus import topology
from shared.bus.connection import Bus
from shared.bus.events import to_event
from shared.bus.messages import CANCEL, MAX_BODY_BYTES, READY, SUBMIT
from shared.bus.replays import REPLAY
from shared.catalog import Catalog
from shared.errors import NotFoundError
from shared.ledger.manifests import manifest_key
from shared.ledger.tables import wanted_of
from shared.lifecycle import Event, Status
from shared.state import BatchRecord, FileRecord, State
from shared.storage import Storage
from shared.submission.accept import accept
from shared.submission.together import accept_together
from tests.batches import in_status, validating
from tests.conftest import a_bucket, minio_client
from tests.eventually import eventually
from tests.integration.dispatcher.conftest import CATALOG, CHAT, a_planner, line, lines
from tests.integration.dispatcher.doors import Door, an_intake
from tests.manifests import a_manifest, every_manifest
from tests.servers import S3

_SECRET = "the treasure lies under the old oak"
_CATALOG = Catalog.model_validate(yaml.safe_load(CATALOG))


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
    body = await _input(record, storage)
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


@pytest.mark.parametrize("is_lost", [False, True], ids=["known", "lost by Redis"])
async def test_a_repeat_is_met_though_its_input_is_gone_and_its_time_has_passed(
    is_lost: bool,
    acme: Door,
    state: State,
    storage: Storage,
    redis: "Redis[str]",
    namespace: str,
) -> None:
    given = await _upload(acme, storage)
    moment = datetime.now(UTC) + timedelta(seconds=2)
    body = _body(input=given, not_after=moment.isoformat())
    batch_id = await acme.send(body, message_id="again")
    await acme.settle()
    await storage.remove([given["key"]])
    if is_lost:
        await redis.delete(f"{namespace}batch:{batch_id}")
    await eventually(lambda: datetime.now(UTC) > moment)

    await acme.send(body, message_id="again")
    await acme.settle(2)

    await acme.reply()
    reply, _ = await acme.reply()
    assert (reply["status"], reply["duplicate"]) == ("accepted", not is_lost)
    assert reply["batch"]["id"] == batch_id


async def test_another_body_under_the_same_id_is_refused_and_spoils_nothing(
    acme: Door, state: State, storage: Storage
) -> None:
    batch_id = await acme.send(_body(), message_id="twice")
    await acme.settle()
    record = await state.batches.get(batch_id)
    before = await _input(record, storage)

    await acme.send(_body(custom_id="other"), message_id="twice")
    await acme.settle(2)

    await acme.reply()
    reply, _ = await acme.reply()
    assert (reply["status"], reply["error"]["code"]) == ("rejected", "idempotency_conflict")
    assert await state.batches.get(batch_id) == record
    assert await _input(record, storage) == before
    assert [one.fingerprint async for one in every_manifest(storage)] == [
        record.fields["fingerprint"]
    ]


@pytest.mark.parametrize(
    ("changes", "code", "param"),
    [
        ({"surprise": 1}, "schema_invalid", "surprise"),
        ({"priority": 10}, "schema_invalid", "priority"),
        ({"completion_window": "soon"}, "schema_invalid", "completion_window"),
        ({"input": {"kind": "mail"}}, "schema_invalid", "input.kind"),
        ({"input": {"kind": "inline", "requests": []}}, "schema_invalid", "input.requests"),
        ({"custom_id": ""}, "schema_invalid", "input.requests[0].custom_id"),
        ({"endpoint": "/v1/images/generations"}, "schema_invalid", "endpoint"),
        ({"not_after": "2020-01-01T00:00:00Z"}, "expired", "not_after"),
        ({"input": {"kind": "file", "file_id": "file-x"}}, "input_not_found", "input.file_id"),
        ({"metadata": {"k": "x" * MAX_BODY_BYTES}}, "too_large", None),
        ({"input": {"kind": "file", "file_id": "file-x"}, "priority": 10}, "schema_invalid", ...),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else str(value),
)
async def test_a_message_that_breaks_the_contract_is_answered_and_acked(
    changes: dict[str, Any], code: str, param: str | None, acme: Door, state: State
) -> None:
    batch_id = await acme.send(_body(**changes))
    await acme.settle()

    await _assert_refused(acme, state, batch_id, code, param, is_dead=code == "too_large")


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b""])
async def test_a_body_that_is_no_submission_is_answered(
    body: bytes, acme: Door, state: State
) -> None:
    batch_id = await acme.send(body)
    await acme.settle()

    reply = await _assert_refused(
        acme, state, batch_id, "schema_invalid", ..., is_dead=body != b"[]"
    )
    assert reply["error"]["message"]


async def test_an_unknown_encoding_is_refused(acme: Door, state: State) -> None:
    batch_id = await acme.send(_body(), content_encoding="br")
    await acme.settle()

    await _assert_refused(
        acme, state, batch_id, "unsupported_media", "content_encoding", is_dead=True
    )


async def test_a_file_of_another_tenant_does_not_exist(acme: Door, state: State) -> None:
    file = _file("globex")
    await state.files.create(file)

    batch_id = await acme.send(_body(input={"kind": "file", "file_id": file.id}))
    await acme.settle()

    reply = await _assert_refused(acme, state, batch_id, "input_not_found", "input.file_id")
    assert f"No such File object: {file.id}" in reply["error"]["message"]


async def test_while_redis_is_made_again_a_file_that_it_lacks_is_waited_for(
    acme: Door, state: State
) -> None:
    file = _file(acme.tenant)
    await state.restore.begin()
    try:
        batch_id = await acme.send(_body(input={"kind": "file", "file_id": file.id}))
        await _see_waiting(acme)
        await state.restore.files([file])
    finally:
        await state.restore.end()
    await acme.settle()

    reply, _ = await acme.reply()
    assert (reply["status"], reply["batch"]["id"]) == ("accepted", batch_id)


async def test_while_redis_is_made_again_no_message_is_refused(acme: Door, state: State) -> None:
    await state.restore.begin()
    try:
        # It may be an adapter of the tenant's, which Redis lacks.
        await acme.send(_body(input={"kind": "open", "model": "unheard-of"}))
        await _see_waiting(acme)
    finally:
        await state.restore.end()
    await acme.settle()

    reply, _ = await acme.reply()
    assert reply["error"]["code"] == "model_not_found"


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

    await _assert_refused(acme, state, batch_id, "input_not_found", "input.key")


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"version_id": "v" * 1500}, "input.version_id"),
        ({"key": "inbox/{tenant}/\0"}, "input.key"),
        ({"key": "inbox/{tenant}/" + "ü" * 1000}, "input.key"),
        ({"key": "inbox/{tenant}/" + "a" * 1000}, "input.key"),
        ({"version_id": "v" * 1000}, "input.key"),
        ({"etag": "e" * 1500}, "input.etag"),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_an_object_that_can_have_no_such_name_is_answered_and_waits_for_nothing(
    change: dict[str, str], param: str, acme: Door, storage: Storage
) -> None:
    given = await _upload(acme, storage)
    given |= {name: text.replace("{tenant}", acme.tenant) for name, text in change.items()}

    await acme.send(_body(input=given))

    reply, _ = await acme.reply()
    assert (reply["status"], reply["error"]["param"]) == ("rejected", param)
    # Whether S3 fails for the name or does not know it depends on the server.
    codes = {"schema_invalid", "input_not_found", "input_unavailable"}
    assert reply["error"]["code"] in codes
    await acme.settle()
    assert acme.deliveries == 1


@pytest.mark.parametrize(
    ("properties", "param", "is_answered"),
    [
        ({"message_id": "not allowed: spaces"}, "message_id", True),
        ({"message_id": "x" * 129}, "message_id", True),
        ({"user_id": None}, "user_id", False),
        ({"type": None}, "type", True),
        ({"type": "batch.dance.v1"}, "type", True),
        ({"content_type": "text/plain"}, "content_type", True),
        ({"content_type": None}, "content_type", True),
        ({"key": "submit.v1.globex"}, "routing_key", True),
        ({"key": "anything"}, "routing_key", True),
        ({"headers": {"x-tenant": "globex"}}, "headers.x-tenant", True),
        ({"headers": {"x-other": "x" * 8192}}, "headers", True),
        ({"reply_to": "reply.globex.mine"}, "reply_to", False),
        ({"reply_to": None, "delivery_mode": 1}, "delivery_mode", False),
    ],
    ids=lambda value: str(value)[:60],
)
async def test_what_is_not_a_tenants_message_is_a_dead_letter_as_it_came(
    properties: dict[str, Any], param: str, is_answered: bool, acme: Door, state: State
) -> None:
    await acme.send(_body(), **properties)
    await acme.settle()

    letter = await acme.dead()
    sent = acme.settled[0]
    assert (letter.by, letter.body) == ("dispatcher", _body())
    assert [reason.param for reason in letter.reasons] == [param]
    assert (letter.user, letter.routing_key) == (sent.user_id, sent.routing_key)
    assert letter.properties.get("message_id") == sent.message_id
    assert letter.properties.get("reply_to") == sent.reply_to
    assert letter.headers == (sent.headers if param != "headers" else {})
    if is_answered:
        reply, _ = await acme.reply()
        assert reply["error"]["param"] == param
        assert reply["error"]["code"] == letter.reasons[0].code
    assert await acme.has_no_reply()
    assert (await state.batches.page(acme.tenant, after=None, limit=9))[0] == []


@pytest.mark.parametrize(
    ("properties", "code", "param"),
    [
        ({"delivery_mode": 1}, "schema_invalid", "delivery_mode"),
        ({"expiration": 60}, "schema_invalid", "expiration"),
        ({"correlation_id": "x" * 129}, "schema_invalid", "correlation_id"),
        ({"headers": {"x-schema": "batch.submit/2"}}, "schema_invalid", "headers.x-schema"),
    ],
    ids=str,
)
async def test_a_property_that_breaks_the_contract_is_answered(
    properties: dict[str, Any], code: str, param: str, acme: Door, state: State
) -> None:
    batch_id = await acme.send(_body(), **properties)
    await acme.settle()

    reply, _ = await acme.reply()
    assert [(one["code"], one["param"]) for one in reply["errors"]] == [(code, param)]
    assert await acme.count(topology.DEAD_QUEUE) == 0
    with pytest.raises(NotFoundError):
        await state.batches.get(batch_id)


async def test_a_refusal_names_every_reason(acme: Door) -> None:
    wrong = json.loads(_body(priority=10, completion_window="soon", surprise=1))
    wrong["input"]["requests"] += [{"custom_id": ""}, {"method": "GET"}]

    await acme.send(
        json.dumps(wrong).encode(), expiration=60, headers={"x-tenant": "globex", "x-schema": "x"}
    )
    await acme.settle()

    reply, _ = await acme.reply()
    assert {one["param"] for one in reply["errors"]} == {
        "headers.x-tenant",
        "expiration",
        "headers.x-schema",
        "priority",
        "completion_window",
        "surprise",
        "input.requests[1].custom_id",
        "input.requests[1].method",
        "input.requests[1].url",
        "input.requests[1].body",
        "input.requests[2].custom_id",
        "input.requests[2].method",
        "input.requests[2].url",
        "input.requests[2].body",
    }
    assert reply["error_count"] == 14
    assert reply["error"]["code"] == "tenant_mismatch"


async def test_reasons_of_the_schema_of_the_input_and_of_time_are_reported_together(
    acme: Door,
) -> None:
    await acme.send(
        _body(
            endpoint="/v1/images/generations",
            not_after="2020-01-01T00:00:00Z",
            input={"kind": "file", "file_id": "file-x"},
        )
    )
    await acme.settle()

    reply, _ = await acme.reply()
    assert [one["param"] for one in reply["errors"]] == ["endpoint", "not_after", "input.file_id"]


async def test_a_message_without_an_id_is_a_dead_letter_as_it_came(acme: Door) -> None:
    await acme.send_bare(_body(), message_type=SUBMIT, user_id=acme.tenant)
    await acme.settle()

    letter = await acme.dead()
    assert (letter.body, letter.user) == (_body(), acme.tenant)
    assert "message_id" not in letter.properties


@pytest.mark.parametrize("kind", [SUBMIT, CANCEL, REPLAY])
@pytest.mark.parametrize("message_id", ["with spaces", "x" * 129, None])
async def test_a_message_with_a_wrong_id_is_answered_under_that_of_its_dead_letter(
    message_id: str | None, kind: str, acme: Door
) -> None:
    named: dict[str, Any] = {} if message_id is None else {"message_id": message_id}
    await acme.send_bare(
        _body(),
        message_type=kind,
        user_id=acme.tenant,
        reply_to=acme.reply_to,
        correlation_id="c-1",
        content_type="application/json",
        delivery_mode=2,
        **named,
    )
    await acme.settle()

    letter = await acme.dead()
    reply, message = await acme.reply()
    assert "message_id" in {error["param"] for error in reply["errors"]}
    assert (message.correlation_id, message.message_id) == ("c-1", f"{letter.id}.reply")
    assert acme.deliveries == 1


async def test_garbage_is_a_dead_letter_as_it_came(acme: Door) -> None:
    await acme.send_bare(b"\x00\xffgarbage")
    await acme.settle()

    letter = await acme.dead()
    assert letter.body == b"\x00\xffgarbage"
    assert letter.reasons[0].param == "user_id"


async def test_properties_that_nobody_can_read_are_a_dead_letter_and_stop_nobody(
    acme: Door, state: State
) -> None:
    await acme.send_bare(
        _body(),
        swap=(b"PLACEHOLDER", b"\xff" * 11),
        message_id="PLACEHOLDER",
        message_type=SUBMIT,
        user_id=acme.tenant,
    )
    batch_id = await acme.send(_body())
    await acme.settle(2)

    letter = await acme.dead()
    assert letter.body == _body()
    assert "properties" in {reason.param for reason in letter.reasons}
    assert b"\xff" * 11 in letter.headers["x-unreadable-properties"]
    assert (await state.batches.get(batch_id)).status is Status.VALIDATING
    assert acme.deliveries == 2


async def test_a_number_that_cannot_be_sent_on_is_refused_as_too_large_a_header(acme: Door) -> None:
    await acme.send_bare(
        _body(),
        # The client writes no double.
        swap=(b"l" + struct.pack(">q", 2**40), b"d" + struct.pack(">d", 1e300)),
        headers={"x-number": 2**40},
        message_id="m-double",
        message_type=SUBMIT,
        user_id=acme.tenant,
    )
    await acme.settle()

    letter = await acme.dead()
    assert (letter.body, letter.headers) == (_body(), {})
    assert "headers" in {reason.param for reason in letter.reasons}
    assert acme.deliveries == 1


async def test_a_message_that_cannot_even_be_buried_is_left_to_the_broker(
    acme: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bug(**_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("dispatcher.burial.dead_table", bug)
    await acme.send_bare(b"garbage", message_id="m-1", user_id=acme.tenant)

    letter = await acme.dead()
    assert (letter.body, letter.by) == (b"garbage", "broker")
    assert await acme.count(topology.SUBMIT_QUEUE) == 0


async def test_a_message_on_which_the_dispatcher_breaks_ends_with_the_place_and_no_prompt(
    acme: Door, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def bug(*_: object, **__: object) -> None:
        raise ZeroDivisionError(_SECRET)

    monkeypatch.setattr(storage, "put", bug)
    with structlog.testing.capture_logs() as logs:
        await acme.send(_body(custom_id=_SECRET))
        letter = await acme.dead()

    [reason] = letter.reasons
    assert (reason.code, letter.by) == ("internal_error", "dispatcher")
    assert "ZeroDivisionError" in reason.message
    assert letter.where is not None
    assert letter.where.endswith(" in bug")
    assert letter.body == _body(custom_id=_SECRET)
    assert letter.deliveries == 4
    breaks = [entry for entry in logs if entry["event"] == "message.broke"]
    assert [entry["code"] for entry in breaks] == ["internal_error"] * 4
    assert _SECRET not in str(logs) + str(reason)
    assert await acme.count(topology.SUBMIT_QUEUE) == 0


async def test_a_batch_carries_its_trace(acme: Door, state: State) -> None:
    parent = f"00-{'a' * 32}-{'b' * 16}-01"
    headers = {"traceparent": parent, "tracestate": "vendor=1", "x-tenant": acme.tenant}

    batch_id = await acme.send(_body(), headers={**headers, "x-schema": "batch.submit/1"})
    await acme.settle()

    record = (await state.batches.get(batch_id)).fields
    [entry] = await state.outbox.read("events", limit=9, wait_seconds=0)
    event = to_event(entry)
    assert (record["traceparent"], record["tracestate"]) == (parent, "vendor=1")
    assert event.get_extension("traceparent") == parent
    assert event.get_extension("tracestate") == "vendor=1"


@pytest.mark.parametrize("parent", [f"00-{'0' * 32}-{'b' * 16}-01", "x", 7])
async def test_a_trace_that_breaks_w3cs_rules_is_ignored(
    parent: Any, acme: Door, state: State
) -> None:
    batch_id = await acme.send(_body(), headers={"traceparent": parent, "tracestate": "vendor=1"})
    await acme.settle()

    assert "traceparent" not in (await state.batches.get(batch_id)).fields


async def test_a_direct_reply_comes_to_whoever_asked(acme: Door, amqp_url: str) -> None:
    answers: asyncio.Queue[bytes] = asyncio.Queue()

    async def hear(message: AbstractIncomingMessage) -> None:
        await answers.put(message.body)

    async with await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        direct = await channel.get_queue("amq.rabbitmq.reply-to", ensure=False)
        await direct.consume(hear, no_ack=True)
        exchange = await channel.get_exchange(topology.SUBMIT_EXCHANGE)
        properties = {"type": SUBMIT, "user_id": acme.tenant, "content_type": "application/json"}
        await exchange.publish(
            aio_pika.Message(
                _body(),
                message_id="direct",
                reply_to="amq.rabbitmq.reply-to",
                delivery_mode=2,
                **properties,  # type: ignore[arg-type]  # texts all of them
            ),
            f"submit.v1.{acme.tenant}",
        )

        answer = json.loads(await asyncio.wait_for(answers.get(), 30))

    assert answer["batch"]["id"] == ids.batch_id(acme.tenant, "direct")


async def test_an_address_that_the_broker_cannot_read_stops_no_other_reply(acme: Door) -> None:
    for odd in ("!", "g2dkAA", "x.y.z", "AAAA.BBBB", "g" * 190):
        await acme.send(_body(), reply_to=f"amq.rabbitmq.reply-to.{odd}")
    batch_id = await acme.send(_body())

    reply, _ = await acme.reply()
    assert reply["batch"]["id"] == batch_id


async def test_replies_go_out_after_a_crash_before_they_were_sent(
    door: Door, bus: Bus, state: State, storage: Storage, replying: None
) -> None:
    await bus.consume(door.serve(_intake(state, storage, bus)))
    batch_id = await door.send(_body())
    await door.settle()

    reply, message = await door.reply()
    assert reply["batch"]["id"] == batch_id
    assert message.message_id == f"{batch_id}.reply"


async def test_the_hourly_limit_of_batches_holds_here_too(
    door: Door, bus: Bus, state: State, storage: Storage, replying: None
) -> None:
    await bus.consume(door.serve(_intake(state, storage, bus, batches_per_hour=2)))
    made = []
    for number in range(3):
        made.append(await door.send(_body(), message_id=f"m-{number}"))
        await door.settle(number + 1)
    # A repeat is no new batch.
    await door.send(_body(), message_id="m-0")
    await door.settle(4)

    replies = [(await door.reply())[0] for _ in range(4)]
    assert [reply["status"] for reply in replies] == [
        "accepted",
        "accepted",
        "rejected",
        "accepted",
    ]
    assert replies[2]["error"]["code"] == "quota_exceeded"
    assert "Limit 2" in replies[2]["error"]["message"]
    assert replies[3]["duplicate"] is True
    with pytest.raises(NotFoundError):
        await state.batches.get(made[2])


async def test_a_batch_is_cancelled_by_a_message(acme: Door, state: State) -> None:
    batch_id = await acme.send(_body())
    await acme.settle()
    await acme.reply()

    await acme.cancel(batch_id)
    await acme.settle(2)
    await acme.cancel(batch_id)
    await acme.settle(3)

    first, message = await acme.reply()
    second, _ = await acme.reply()
    assert (first["status"], first["duplicate"]) == ("accepted", False)
    assert (first["batch"]["id"], first["batch"]["status"]) == (batch_id, "cancelling")
    assert message.message_id == f"{acme.settled[1].message_id}.cancel.reply"
    assert (second["status"], second["duplicate"]) == ("accepted", True)
    assert (await state.batches.get(batch_id)).status is Status.CANCELLING


async def test_a_batch_that_is_unknown_or_foreign_or_over_is_not_cancelled(
    acme: Door, state: State
) -> None:
    theirs = await in_status(state, Status.VALIDATING)
    over = await validating(state, tenant=acme.tenant)
    await state.apply(over, Event.INPUT_REJECTED)

    for batch_id in (f"batch_{'0' * 32}", theirs, over, "order-17"):
        await acme.cancel(batch_id)
        await acme.settle(len(acme.settled) + 1)

    errors = [(await acme.reply())[0]["error"] for _ in range(4)]
    assert [error["code"] for error in errors] == [
        "unknown_batch",
        "unknown_batch",
        "batch_ended",
        "schema_invalid",
    ]
    assert errors[0]["message"].replace("0" * 32, "") == errors[1]["message"].replace(
        theirs.removeprefix("batch_"), ""
    )
    assert (await state.batches.get(theirs)).status is Status.VALIDATING


async def test_a_cancellation_under_the_key_of_a_submission_is_refused(acme: Door) -> None:
    await acme.cancel(f"batch_{'0' * 32}", key=f"submit.v1.{acme.tenant}")
    await acme.settle()

    assert (await acme.reply())[0]["error"]["code"] == "bad_routing_key"


async def test_an_object_in_a_bucket_that_the_operator_has_named_becomes_a_batch(
    door: Door, bus: Bus, state: State, storage: Storage, s3: S3, replying: None
) -> None:
    async with a_bucket(s3) as theirs:
        places = {
            door.tenant: [f"s3://{theirs.bucket}/exports/"],
            "globex": [f"s3://{theirs.bucket}/globex/"],
            "*": [f"s3://{theirs.bucket}/all/{{tenant}}/"],
        }
        await bus.consume(door.serve(_intake(state, storage, bus, places=places)))
        keys = [f"{name}in.jsonl" for name in ("exports/", f"all/{door.tenant}/")]
        others = ["globex/in.jsonl", "all/globex/in.jsonl", "exports-2/in.jsonl", "in.jsonl"]
        for number, key in enumerate([*keys, *others]):
            stored = await theirs.put(key, lines(2))
            given = {
                "kind": "s3",
                "bucket": theirs.bucket,
                "key": key,
                "etag": stored.etag,
                "size": stored.size,
            }
            await door.send(_body(input=given))
            await door.settle(number + 1)

        replies = [(await door.reply())[0] for _ in range(6)]
        assert [reply["status"] for reply in replies] == ["accepted"] * 2 + ["rejected"] * 4
        record = await state.batches.get(replies[0]["batch"]["id"])
        assert record.fields["bucket"] == theirs.bucket


async def test_a_table_in_a_place_of_the_tenant_becomes_a_batch(
    acme: Door, state: State, storage: Storage
) -> None:
    await storage.put(f"inbox/{acme.tenant}/t.csv", b"text\na\n")
    url = f"s3://{storage.bucket}/inbox/{acme.tenant}/t.csv"
    table = {"kind": "dataset", "objects": url, "template": {"model": "m", "user": "{{ text }}"}}
    table["carry"] = ["text"]
    wrong = {**table, "template": {"user": "{{ text"}}
    foreign = {**table, "objects": f"s3://{storage.bucket}/inbox/other/t.csv"}
    unknown = {**table, "columms": ["text"]}

    for number, given in enumerate((table, wrong, foreign, unknown)):
        await acme.send(_body(input=given, output={"format": "csv"}))
        await acme.settle(number + 1)
    await acme.send(_body(input=table, output={"columns": ["nothing"]}))
    await acme.settle(5)

    replies = [(await acme.reply())[0] for _ in range(5)]
    record = await state.batches.get(replies[0]["batch"]["id"])
    assert await storage.get(record.fields["dataset"])
    assert wanted_of(record.fields["output"]).format == "csv"
    assert [one["error"]["param"] for one in replies[1:]] == [
        "input.template.user",
        "input.objects",
        "input.columms",
        "output.columns",
    ]


async def test_a_version_of_an_object_stays_what_it_was(
    acme: Door, state: State, storage: Storage, s3: S3, catalog: Catalog
) -> None:
    key = f"inbox/{acme.tenant}/versioned.jsonl"
    client = minio_client(s3)
    client.set_bucket_versioning(storage.bucket, VersioningConfig("Enabled"))
    body = lines(3)
    wrote = client.put_object(storage.bucket, key, io.BytesIO(body), len(body))
    client.put_object(storage.bucket, key, io.BytesIO(lines(2)), len(lines(2)))
    given = {
        "kind": "s3",
        "bucket": storage.bucket,
        "key": key,
        "etag": wrote.etag,
        "size": len(body),
        "version_id": wrote.version_id,
    }

    batch_id = await acme.send(_body(input=given))
    await acme.send(_body(input={**given, "version_id": "nonsense"}))
    await acme.settle(2)
    await a_planner(state, storage, catalog).plan(batch_id)

    record = await state.batches.get(batch_id)
    for found in list(client.list_objects(storage.bucket, recursive=True, include_version=True)):
        client.remove_object(storage.bucket, found.object_name or "", version_id=found.version_id)
    assert (record.status, record.number("total")) == (Status.IN_PROGRESS, 3)
    refused = next(
        reply
        for reply in [(await acme.reply())[0] for _ in range(2)]
        if reply["status"] == "rejected"
    )
    assert refused["error"]["param"] == "input.key"


@pytest.mark.parametrize("is_right", [True, False])
async def test_the_sha256_of_an_object_is_checked_when_it_is_read(
    is_right: bool, acme: Door, state: State, storage: Storage, catalog: Catalog
) -> None:
    given = await _upload(acme, storage)
    digest = hashlib.sha256(lines(3) if is_right else b"other").hexdigest()

    batch_id = await acme.send(_body(input={**given, "sha256": digest}))
    await acme.settle()
    await a_planner(state, storage, catalog).plan(batch_id)

    batch = (await state.batches.get(batch_id)).to_openai()
    if is_right:
        assert batch.status == "in_progress"
    else:
        assert batch.status == "failed"
        assert batch.errors is not None
        assert [error.code for error in batch.errors.data] == ["input_changed"]


async def test_an_input_above_the_limit_is_refused(
    door: Door, bus: Bus, state: State, storage: Storage, replying: None
) -> None:
    await bus.consume(door.serve(_intake(state, storage, bus, max_bytes=8)))
    file = _file(door.tenant)
    await state.files.create(file)

    await door.send(_body(input={"kind": "file", "file_id": file.id}))
    await door.settle()
    await door.send(_body(input=await _upload(door, storage)))
    await door.settle(2)

    errors = [(await door.reply())[0]["error"] for _ in range(2)]
    assert [(error["code"], error["param"]) for error in errors] == [
        ("too_large", "input.file_id"),
        ("too_large", "input.size"),
    ]


async def test_a_file_whose_time_is_over_does_not_exist(acme: Door, state: State) -> None:
    file = _file(acme.tenant)._replace(expires_at=5)
    await state.files.create(file)

    batch_id = await acme.send(_body(input={"kind": "file", "file_id": file.id}))
    await acme.settle()

    await _assert_refused(acme, state, batch_id, "input_not_found", "input.file_id")


async def test_a_message_that_came_back_often_is_taken_as_well(
    acme: Door, state: State, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, broken = storage.put, 3

    async def bug(*arguments: Any) -> Any:
        nonlocal broken
        broken -= 1
        if broken >= 0:
            raise ZeroDivisionError
        return await put(*arguments)

    monkeypatch.setattr(storage, "put", bug)
    batch_id = await acme.send(_body())

    assert (await acme.reply())[0]["batch"]["id"] == batch_id
    assert acme.deliveries == 4


async def test_our_own_replay_stands_for_its_sender_and_a_tenants_header_for_nothing(
    door: Door, bus: Bus, state: State, storage: Storage, replying: None
) -> None:
    own = door.tenant
    await bus.consume(door.serve(_intake(state, storage, bus, service_user=own)))
    properties = {"message_id": "m-1", "type": SUBMIT, "content_type": "application/json"}
    replay = {"user": "globex", "properties": {**properties, "delivery_mode": 2}}

    await door.send(_body(), key="submit.v1.globex", headers={"x-replay": replay})
    await door.settle()

    assert (await state.batches.get(ids.batch_id("globex", "m-1"))).tenant == "globex"


async def test_only_batchyards_own_login_may_replay_for_another_tenant(
    acme: Door, state: State
) -> None:
    replay = {"user": "globex", "properties": {"message_id": "m-1", "type": SUBMIT}}

    await acme.send(_body(), key="submit.v1.globex", headers={"x-replay": replay})
    await acme.settle()

    letter = await acme.dead()
    assert (letter.user, letter.reasons[0].code) == (acme.tenant, "bad_routing_key")
    with pytest.raises(NotFoundError):
        await state.batches.get(ids.batch_id("globex", "m-1"))


async def test_a_ready_message_of_a_tenant_is_refused(
    acme: Door, state: State, storage: Storage
) -> None:
    manifest = a_manifest(tenant=acme.tenant)
    await storage.create(manifest_key(manifest.id), b"never read")

    await acme.send(json.dumps({"batch_id": manifest.id}).encode(), type=READY)
    await acme.settle()

    assert (await acme.dead()).properties["type"] == READY
    with pytest.raises(NotFoundError):
        await state.batches.get(manifest.id)


async def test_a_ready_message_wakes_the_dispatcher(
    door: Door, bus: Bus, state: State, storage: Storage
) -> None:
    await bus.consume(door.serve(_intake(state, storage, bus, service_user=door.tenant)))
    manifest = a_manifest(tenant=door.tenant)
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
    manifest = a_manifest(tenant=door.tenant)
    await accept(state, storage, manifest)
    before = await state.batches.get(manifest.id)
    await redis.delete(*[key async for key in redis.scan_iter(match=f"{namespace}*")])

    await door.send(json.dumps({"batch_id": manifest.id}).encode(), type=READY)
    await door.settle()

    assert (await state.batches.get(manifest.id)).fields == before.fields
    assert await state.batches.in_status(Status.VALIDATING) == [manifest.id]


async def test_a_batch_whose_record_was_lost_is_made_again_from_its_pack(
    door: Door,
    bus: Bus,
    state: State,
    storage: Storage,
    redis: "Redis[str]",
    namespace: str,
) -> None:
    await bus.consume(door.serve(_intake(state, storage, bus, service_user=door.tenant)))
    manifests = [a_manifest(f"m-{number}", tenant=door.tenant) for number in range(2)]
    await accept_together(state, storage, manifests)
    before = await state.batches.get(manifests[1].id)
    await redis.delete(*[key async for key in redis.scan_iter(match=f"{namespace}*")])

    body = {"batch_id": manifests[1].id, "pack": before.fields["pack"]}
    await door.send(json.dumps(body).encode(), type=READY)
    await door.settle()

    assert (await state.batches.get(manifests[1].id)).fields == before.fields
    assert await state.batches.in_status(Status.VALIDATING) == [manifests[1].id]


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
    targets = [*theirs, topology.SUBMIT_QUEUE, f"reply.{acme.tenant}.a/b"]

    for target in targets:
        await acme.send(_body(), reply_to=target)
    await acme.settle(len(targets))

    letters = [await acme.dead() for _ in targets]
    assert {letter.reasons[0].code for letter in letters} == {"bad_reply_to"}
    assert {letter.properties["reply_to"] for letter in letters} == set(targets)
    assert await state.outbox.length("replies") == 0
    assert [await acme.count(target) for target in theirs] == [0] * len(theirs)
    assert (await state.batches.page(acme.tenant, after=None, limit=99))[0] == []


async def test_a_reply_queue_that_is_gone_stops_nothing(acme: Door, state: State) -> None:
    batch_id = await acme.send(_body(), reply_to=f"reply.{acme.tenant}.gone")
    await acme.settle()

    assert (await state.batches.get(batch_id)).status is Status.VALIDATING
    assert await acme.count(topology.SUBMIT_QUEUE) == 0

    async def is_dropped() -> bool:
        return await state.outbox.length("replies") == 0

    await eventually(is_dropped)


async def test_a_full_reply_queue_holds_up_no_other(acme: Door, amqp_url: str) -> None:
    full = f"reply.{acme.tenant}.{secrets.token_hex(4)}"
    async with await aio_pika.connect(amqp_url) as connection:
        channel = await connection.channel()
        limits: dict[str, Any] = {"x-max-length": 0, "x-overflow": "reject-publish"}
        await channel.declare_queue(full, exclusive=True, arguments=limits)
        await acme.send(_body(), reply_to=full)
        batch_id = await acme.send(_body())

        reply, _ = await acme.reply()
    assert reply["batch"]["id"] == batch_id


async def test_a_message_waits_for_redis_without_using_up_its_deliveries(
    door: Door, bus: Bus, storage: Storage, redis_server: servers.Redis
) -> None:
    state = State(redis_server.url)
    redis_server.kill()
    with structlog.testing.capture_logs() as logs:
        await bus.consume(door.serve(_intake(state, storage, bus)))
        batch_ids = [await door.send(_body()) for _ in range(3)]
        # The client's own patience is over by then, more than once.
        await eventually(lambda: _retries(logs) >= 4)

        redis_server.start()
        await door.settle(3)

    assert door.deliveries == 3
    statuses = await state.batches.statuses(batch_ids)
    assert list(statuses.values()) == [Status.VALIDATING] * 3
    assert await state.outbox.length("replies") == 3
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


async def test_each_message_that_changes_something_is_a_line_of_the_trail(
    door: Door, state: State, storage: Storage, bus: Bus, tmp_path: Path
) -> None:
    trail = tmp_path / "trail.jsonl"
    await bus.consume(door.serve(_intake(state, storage, bus, trail=trail)))
    made = await door.send(_body(custom_id=_SECRET), message_id="m-1")
    await door.settle(1)
    for count, (message_id, batch_id) in enumerate((("m-2", made), ("m-3", _SECRET)), start=2):
        body = json.dumps({"schema": "batch.cancel/1", "batch_id": batch_id}).encode()
        key = f"cancel.v1.{door.tenant}"
        await door.send(body, key=key, type=CANCEL, message_id=message_id)
        await door.settle(count)
    refused = await door.send(_body(endpoint=_SECRET), message_id="m-4")
    await door.settle(4)

    text = await asyncio.to_thread(trail.read_text)
    lines = [json.loads(line) for line in text.splitlines()]

    of_all = {"door": "bus", "tenant": door.tenant}
    assert [{name: line[name] for name in line if name != "at"} for line in lines] == [
        {**of_all, "act": "batch.created", "result": "done", "object": made, "request_id": "m-1"},
        {**of_all, "act": "batch.cancelled", "result": "done", "object": made, "request_id": "m-2"},
        {
            **of_all,
            "act": "batch.cancelled",
            "result": "refused",
            "why": "schema_invalid",
            "request_id": "m-3",
        },
        {
            **of_all,
            "act": "batch.created",
            "result": "refused",
            "object": refused,
            "why": "schema_invalid",
            "request_id": "m-4",
        },
    ]
    assert _SECRET not in text


def _intake(state: State, storage: Storage, bus: Bus, **changes: Any) -> Intake:
    return an_intake(state, storage, bus, _CATALOG, **changes)


async def _input(record: BatchRecord, storage: Storage) -> bytes:
    start, end = record.input_range
    return await storage.get(record.fields["key"], start=start, end=end, etag=record.fields["etag"])


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


async def _assert_refused(
    door: Door, state: State, batch_id: str, code: str, param: object, *, is_dead: bool = False
) -> dict[str, Any]:
    """Answered, acked, and nothing came of it; `...` stands for any param."""
    reply, message = await door.reply()
    assert reply["status"] == "rejected"
    assert reply["error"]["type"] == "invalid_request_error"
    assert reply["error"]["code"] == code
    assert param is ... or reply["error"]["param"] == param
    assert reply["errors"][0] == reply["error"]
    assert reply["error_count"] == len(reply["errors"])
    assert message.correlation_id == door.settled[0].message_id
    assert message.message_id == f"{batch_id}.reply"
    with pytest.raises(NotFoundError):
        await state.batches.get(batch_id)
    assert await door.count(topology.SUBMIT_QUEUE) == 0
    if is_dead:
        letter = await door.dead()
        assert letter.reasons[0].code == code
        assert letter.body == door.settled[0].body
    assert await door.count(topology.DEAD_QUEUE) == 0
    return reply


def _retries(logs: list[Any]) -> int:
    return sum(entry["event"] == "stamina.retry_scheduled" for entry in logs)


async def _see_waiting(door: Door) -> None:
    """Return when a message has waited for so long that it would have been answered."""
    await eventually(lambda: door.deliveries > 0)
    await asyncio.sleep(0.5)
    assert not door.settled
