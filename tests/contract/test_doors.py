"""The same input over HTTP and the bus, in each of its forms, gives the same batch line by line."""

import asyncio
import json
import secrets
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import aio_pika
import pytest

from shared.bus import topology
from shared.bus.messages import SUBMIT
from shared.tenants import TenantSettings
from tests.contract.conftest import (
    CHAT,
    FINAL,
    OTHER_MODEL,
    Caller,
    ServiceYard,
    batch_params,
    calling,
    row,
    rows,
)
from tests.contract.engine import REFUSE
from tests.eventually import wait_until
from tests.servers import storage_of

_GOOD = rows("one", "zwei ü", REFUSE, "four \u2028 \"'")
#: Two wrong lines, neither of which may refuse the message.
_BAD = rows("one") + row("row-0") + row("row-2", model="nobody's")
_OWN = {"id", "input_file_id", "output_file_id", "error_file_id", "expires_at"}


@pytest.fixture
def both(yard: ServiceYard) -> Iterator[Caller]:
    """A tenant with a key and a login."""
    yield from calling(yard, urlsplit(yard.environment["BATCHYARD_AMQP_URL"]).username or "")


@pytest.mark.parametrize("content", [_GOOD, _BAD], ids=["good", "bad"])
@pytest.mark.parametrize("form", ["inline", "s3", "file"])
def test_a_batch_is_the_same_by_both_doors(form: str, content: bytes, both: Caller) -> None:
    by_http = both.run(content, metadata={"k": "ü"})

    reply = asyncio.run(_submit(both, _input(both, form, content)))
    by_bus = both.until(reply["batch"]["id"], *FINAL)

    assert reply["status"] == "accepted"
    assert _common(by_bus) == _common(by_http)
    for kind in ("output_file_id", "error_file_id"):
        assert _results(both, by_bus[kind]) == _results(both, by_http[kind])
    assert by_bus["id"] in {batch.id for batch in both.openai.batches.list(limit=100)}
    # What came by the bus can be read and is deleted by HTTP like any other.
    assert [json.loads(line) for line in _content(both, by_bus["input_file_id"])] == [
        json.loads(line) for line in content.splitlines()
    ]


@pytest.mark.parametrize("form", ["inline", "s3", "file"])
def test_a_model_that_a_tenant_may_not_use_is_unknown_by_both_doors(
    form: str, both: Caller
) -> None:
    _set(both, TenantSettings(models=(OTHER_MODEL,)))
    try:
        # Until the dispatcher knows.
        wait_until(lambda: both.run(rows("one"))["status"] == "failed", 60)
        by_http = both.run(rows("one", "two"))
        reply = asyncio.run(_submit(both, _input(both, form, rows("one", "two"))))
        by_bus = both.until(reply["batch"]["id"], *FINAL)
        # The gateway reads the settings by itself.
        wait_until(lambda: [one.id for one in both.openai.models.list()] == [OTHER_MODEL], 60)
    finally:
        _set(both, TenantSettings())

    assert [problem["code"] for problem in by_http["errors"]["data"]] == ["model_not_found"] * 2
    assert by_bus["errors"] == by_http["errors"]


def test_a_limit_that_is_reached_is_told_in_the_same_words_by_both_doors(both: Caller) -> None:
    file_id = both.upload(rows("one"))
    _set(both, TenantSettings(stored_bytes=1))
    try:
        wait_until(lambda: _create(both, file_id) == 429, 60)
        refused = both.http.post("/v1/batches", json=batch_params(file_id))
        replies: list[dict[str, Any]] = []

        def is_refused() -> bool:
            replies.append(asyncio.run(_submit(both, {"kind": "file", "file_id": file_id})))
            return bool(replies[-1]["status"] == "rejected")

        wait_until(is_refused, 60)
    finally:
        _set(both, TenantSettings())

    error = refused.json()["error"]
    assert error["code"] == "storage_limit_exceeded"
    assert "Limit: 1 bytes of files and uploads. Used: " in error["message"]
    assert replies[-1]["error"]["code"] == "quota_exceeded"
    # Results that came meanwhile count too.
    assert _without_digits(replies[-1]["error"]["message"]) == _without_digits(error["message"])


def _set(caller: Caller, settings: TenantSettings) -> None:
    caller.yard.on_state(lambda state: state.tenants.put(caller.tenant, settings))


def _create(caller: Caller, file_id: str) -> int:
    return caller.http.post("/v1/batches", json=batch_params(file_id)).status_code


def _without_digits(text: str) -> str:
    return "".join(sign for sign in text if not sign.isdigit() and sign != ",")


def _input(caller: Caller, form: str, content: bytes) -> dict[str, Any]:
    match form:
        case "inline":
            return {"kind": form, "requests": [json.loads(line) for line in content.splitlines()]}
        case "file":
            return {"kind": form, "file_id": caller.upload(content)}
        case _:
            return {"kind": form, **asyncio.run(_put(caller, content))}


async def _put(caller: Caller, content: bytes) -> dict[str, Any]:
    storage = storage_of(caller.yard.environment)
    try:
        key = f"inbox/{caller.tenant}/{secrets.token_hex(4)}.jsonl"
        stored = await storage.put(key, content)
        return {"bucket": storage.bucket, "key": key, "etag": stored.etag, "size": stored.size}
    finally:
        storage.close()


async def _submit(caller: Caller, given: dict[str, Any]) -> dict[str, Any]:
    body = {
        "schema": "batch.submit/1",
        "endpoint": CHAT,
        "completion_window": "24h",
        "metadata": {"k": "ü"},
        "input": given,
    }
    url = caller.yard.environment["BATCHYARD_AMQP_URL"]
    async with await aio_pika.connect(url) as connection:
        channel = await connection.channel()
        answers: asyncio.Queue[bytes] = asyncio.Queue()

        async def hear(message: aio_pika.abc.AbstractIncomingMessage) -> None:
            await answers.put(message.body)

        direct = await channel.get_queue("amq.rabbitmq.reply-to", ensure=False)
        await direct.consume(hear, no_ack=True)
        exchange = await channel.get_exchange(topology.SUBMIT_EXCHANGE)
        await exchange.publish(
            aio_pika.Message(
                json.dumps(body).encode(),
                message_id=f"doors-{secrets.token_hex(4)}",
                type=SUBMIT,
                user_id=caller.tenant,
                content_type="application/json",
                delivery_mode=2,
                reply_to="amq.rabbitmq.reply-to",
            ),
            topology.submit_key(caller.tenant),
            mandatory=True,
        )
        reply: dict[str, Any] = json.loads(await asyncio.wait_for(answers.get(), 60))
        return reply


def _common(batch: dict[str, Any]) -> dict[str, Any]:
    """All but ids and times; of the times, whether they are set."""
    return {
        name: value is not None if name.endswith("_at") else value
        for name, value in batch.items()
        if name not in _OWN
    }


def _results(caller: Caller, file_id: str | None) -> list[dict[str, Any]]:
    lines = caller.lines(file_id)
    for line in lines:
        # Ids are made of the batch's.
        del line["id"]
        if line["response"]:
            del line["response"]["request_id"]
    return lines


def _content(caller: Caller, file_id: str) -> list[bytes]:
    return caller.openai.files.content(file_id).content.splitlines()
