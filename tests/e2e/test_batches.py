"""One batch through every real part, over HTTP and the bus."""

import asyncio
import base64
import hashlib
import io
import json
import secrets
from typing import Any

import aio_pika
from typer.testing import CliRunner

from cli.__main__ import app
from cli.fleet.catalog import CHAT_MODEL
from shared.bus import topology
from tests.conftest import minio_client
from tests.e2e.conftest import RunningFleet, chat_lines, embedding_lines, request_lines
from tests.eventually import eventually
from tests.servers import S3

#: The smallest picture.
_DOT = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNk+A8AAQUBAScY42YAAAAASUVORK5CYII="
)


def test_chat_results_come_back_complete_and_in_input_order(
    warm_chat: RunningFleet,
) -> None:
    batch = warm_chat.submit(chat_lines(40), "/v1/chat/completions", metadata={"purpose": "test"})

    batch = warm_chat.wait(batch)

    assert batch.status == "completed"
    assert batch.request_counts is not None
    assert (40, 40, 0) == (
        batch.request_counts.total,
        batch.request_counts.completed,
        batch.request_counts.failed,
    )
    assert batch.model == CHAT_MODEL
    assert batch.metadata == {"purpose": "test"}
    assert batch.error_file_id is None
    results = warm_chat.results(batch)
    assert [f"row-{row}" for row in range(40)] == [result["custom_id"] for result in results]
    assert {200} == {result["response"]["status_code"] for result in results}
    assert batch.usage is not None
    assert batch.usage.output_tokens == 40 * 8


def test_a_request_that_fails_is_an_error_line_beside_the_others_results(
    warm_chat: RunningFleet,
) -> None:
    good = {
        "model": CHAT_MODEL,
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 4,
    }
    bodies: list[dict[str, Any]] = [
        good,
        {**good, "messages": [{"role": "user", "content": "word " * 5000}]},
        {**good, "temperature": "hot"},
        {**good, "n": 2},
    ]

    batch = warm_chat.wait(
        warm_chat.submit(request_lines("/v1/chat/completions", bodies), "/v1/chat/completions")
    )

    assert batch.status == "completed"
    assert ["row-0", "row-3"] == [result["custom_id"] for result in warm_chat.results(batch)]
    errors = warm_chat.errors(batch)
    assert ["row-1", "row-2"] == [result["custom_id"] for result in errors]
    assert [400, 400] == [result["response"]["status_code"] for result in errors]
    assert all(result["error"] is None for result in errors)
    assert {"message", "type", "param", "code"} == set(errors[0]["response"]["body"]["error"])


def test_completions_run_on_the_same_lane(warm_chat: RunningFleet) -> None:
    bodies = [{"model": CHAT_MODEL, "prompt": "Once", "max_tokens": 5, "ignore_eos": True}]

    batch = warm_chat.wait(
        warm_chat.submit(request_lines("/v1/completions", bodies), "/v1/completions")
    )

    assert batch.status == "completed"
    assert warm_chat.results(batch)[0]["response"]["body"]["object"] == "text_completion"


def test_embeddings_mean_something(warm_embeddings: RunningFleet) -> None:
    texts = ["reset my password", "I forgot my login", "the soup needs more salt"]

    batch = warm_embeddings.wait(warm_embeddings.submit(embedding_lines(texts), "/v1/embeddings"))

    assert batch.status == "completed"
    vectors = [
        result["response"]["body"]["data"][0]["embedding"]
        for result in warm_embeddings.results(batch)
    ]
    assert {384} == {len(vector) for vector in vectors}
    assert _dot(vectors[0], vectors[1]) > 0.5 > _dot(vectors[0], vectors[2])


def test_cancelling_stops_the_rows_and_keeps_what_is_finished(
    warm_chat: RunningFleet,
) -> None:
    batch = warm_chat.submit(chat_lines(2000, tokens=64), "/v1/chat/completions")
    while not (counts := warm_chat.client.batches.retrieve(batch.id).request_counts) or (
        counts.completed == 0
    ):
        pass

    cancelled = warm_chat.client.batches.cancel(batch.id)
    ended = warm_chat.wait(batch)

    assert cancelled.status in ("cancelling", "cancelled")
    assert ended.status == "cancelled"
    assert ended.request_counts is not None
    finished, unrun = warm_chat.results(ended), warm_chat.errors(ended)
    assert 2000 == len(finished) + len(unrun)
    assert ended.request_counts.completed == len(finished) > 0
    assert {"batch_cancelled"} == {result["error"]["code"] for result in unrun}
    assert 2000 == len({result["custom_id"] for result in (*finished, *unrun)})


async def test_media_that_a_request_names_are_fetched_with_the_lane_jobs_own_login(
    warm_chat: RunningFleet,
) -> None:
    """The model sees no pictures, so that the engine's own words show that it got one."""
    await warm_chat.storage().put("inbox/demo/dot.png", _DOT)
    urls = [f"s3://batchyard/inbox/demo/{name}" for name in ("dot.png", "none.png")]
    urls.append("s3://batchyard/inbox/globex/dot.png")
    bodies: list[dict[str, Any]] = [
        {
            "model": CHAT_MODEL,
            "messages": [
                {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}
            ],
        }
        for url in urls
    ]

    batch = warm_chat.wait(
        warm_chat.submit(request_lines("/v1/chat/completions", bodies), "/v1/chat/completions")
    )

    here, missing, foreign = (
        result["response"]["body"]["error"]["message"] for result in warm_chat.errors(batch)
    )
    assert "multimodal" in here
    assert "no such object" in missing
    assert "under s3://batchyard/inbox/demo/" in foreign


async def test_a_message_with_an_object_in_s3_runs_and_is_announced(
    warm_chat: RunningFleet,
) -> None:
    storage = warm_chat.storage()
    stored = await storage.put("inbox/demo/orders.jsonl", chat_lines(3))
    source = {
        "kind": "s3",
        "bucket": "batchyard",
        "key": stored.key,
        "etag": stored.etag,
        "size": stored.size,
    }

    reply, events = await _submit_on_the_bus(warm_chat, "order-1", source)

    assert reply["status"] == "accepted"
    assert [
        "batch.accepted",
        "batch.in_progress",
        "batch.finalizing",
        "batch.completed",
    ] == [event["type"] for event in events if event["type"] != "batch.progress"]
    final = events[-1]
    assert final["data"]["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
    assert final["subject"] == reply["batch"]["id"]
    sequences = [event["sequence"] for event in events]
    assert sorted(sequences) == sequences
    output = final["data"]["output"]
    assert 3 == (await storage.get(output["key"])).count(b"\n")
    assert warm_chat.client.batches.retrieve(final["subject"]).status == "completed"
    storage.close()


async def test_a_message_with_a_file_id_gives_what_http_gives(
    warm_chat: RunningFleet,
) -> None:
    file = warm_chat.client.files.create(file=("in.jsonl", chat_lines(2)), purpose="batch")

    reply, events = await _submit_on_the_bus(
        warm_chat, "order-2", {"kind": "file", "file_id": file.id}
    )

    assert reply["batch"]["status"] in (
        "validating",
        "in_progress",
        "finalizing",
        "completed",
    )
    batch = warm_chat.client.batches.retrieve(events[-1]["subject"])
    assert batch.input_file_id == file.id
    assert ["row-0", "row-1"] == [result["custom_id"] for result in warm_chat.results(batch)]


async def test_the_same_message_twice_is_one_batch(warm_chat: RunningFleet) -> None:
    file = warm_chat.client.files.create(file=("in.jsonl", chat_lines(1)), purpose="batch")
    source = {"kind": "file", "file_id": file.id}

    first, _ = await _submit_on_the_bus(warm_chat, "order-3", source)
    second, _ = await _submit_on_the_bus(warm_chat, "order-3", source, wait_for=())

    assert first["batch"]["id"] == second["batch"]["id"]
    assert (False, True) == (first["duplicate"], second["duplicate"])


async def test_a_tenants_s3_login_places_the_input_and_reads_the_output_of_a_message(
    warm_chat: RunningFleet,
) -> None:
    # In a thread, because the command runs an event loop of its own.
    made = await asyncio.to_thread(
        CliRunner().invoke,
        app,
        ["s3-logins", "create", "--tenant", "demo", "--json", "--run-dir", str(warm_chat.run_dir)],
    )
    login = json.loads(made.stdout)
    client = minio_client(S3(login["endpoint"], login["access_key"], login["secret_key"]))
    body, key = chat_lines(3), f"{login['prefix']}input.jsonl"
    placed = client.put_object(login["bucket"], key, io.BytesIO(body), len(body))

    reply, events = await _submit_on_the_bus(
        warm_chat,
        f"placed-{secrets.token_hex(4)}",
        {
            "kind": "s3",
            "bucket": login["bucket"],
            "key": key,
            "etag": placed.etag,
            "size": len(body),
        },
    )

    assert reply["status"] == "accepted"
    output = events[-1]["data"]["output"]
    response = client.get_object(output["bucket"], output["key"])
    written = response.read()
    response.close()
    response.release_conn()
    assert hashlib.sha256(written).hexdigest() == output["sha256"]
    assert [json.loads(line)["custom_id"] for line in written.splitlines()] == [
        f"row-{row}" for row in range(3)
    ]


async def _submit_on_the_bus(
    fleet: RunningFleet,
    message_id: str,
    source: dict[str, Any],
    *,
    wait_for: tuple[str, ...] = ("batch.completed", "batch.failed"),
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Publish as the tenant; the reply, and the batch's events up to the last one."""
    connection = await aio_pika.connect(fleet.environment["BATCHYARD_AMQP_URL"])
    async with connection:
        channel = await connection.channel()
        events = await channel.get_queue("sub.demo.main")
        await events.purge()
        replies = await channel.get_queue("reply.demo.main")
        await replies.purge()
        exchange = await channel.get_exchange(topology.SUBMIT_EXCHANGE, ensure=False)
        body = {
            "schema": "batch.submit/1",
            "endpoint": "/v1/chat/completions",
            "input": source,
        }
        await exchange.publish(
            aio_pika.Message(
                json.dumps(body).encode(),
                message_id=message_id,
                type="batch.submit.v1",
                user_id="demo",
                reply_to=replies.name,
                delivery_mode=2,
                content_type="application/json",
            ),
            topology.submit_key("demo"),
        )
        reply = json.loads((await _next(replies)).body)
        seen: list[dict[str, Any]] = []
        while wait_for:
            event = json.loads((await _next(events)).body)
            if event["subject"] == reply["batch"]["id"]:
                seen.append(event)
                if event["type"] in wait_for:
                    break
    return reply, seen


async def _next(queue: aio_pika.abc.AbstractQueue) -> aio_pika.abc.AbstractIncomingMessage:
    found: list[aio_pika.abc.AbstractIncomingMessage | None] = []

    # One at a time: a consumer would be sent more than it hands over before it ends.
    async def arrived() -> bool:
        found.append(await queue.get(no_ack=True, fail=False))
        return found[-1] is not None

    await eventually(arrived)
    assert found[-1] is not None
    return found[-1]


def _dot(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))
