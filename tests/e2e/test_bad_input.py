"""Bad input gets an error that names the place, costs nobody else anything, and loses nothing."""

import json

import aio_pika
import openai
import pytest

from cli.fleet.catalog import CHAT_MODEL
from shared.bus import topology
from tests.e2e.conftest import (
    BROKEN_MODEL,
    COLD_SECONDS,
    RunningFleet,
    chat_lines,
    request_lines,
    until,
)

CHAT = "/v1/chat/completions"


def _problems(fleet: RunningFleet, lines: bytes) -> list[tuple[str | None, int | None, str | None]]:
    batch = fleet.wait(fleet.submit(lines, CHAT))
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    return [(problem.code, problem.line, problem.param) for problem in batch.errors.data]


def test_lines_that_are_not_json_are_all_named(fleet: RunningFleet) -> None:
    lines = chat_lines(1) + b"not json\n" + b'{"half": \n' + b"[]\n"

    assert [("invalid_json_line", line, None) for line in (2, 3, 4)] == _problems(fleet, lines)


def test_an_empty_file_is_refused(fleet: RunningFleet) -> None:
    assert [("empty_file", None, None)] == _problems(fleet, b"\n\n")


def test_duplicate_custom_ids_are_all_named(fleet: RunningFleet) -> None:
    lines = chat_lines(2) + chat_lines(2)

    assert [
        ("duplicate_custom_id", 3, "custom_id"),
        ("duplicate_custom_id", 4, "custom_id"),
    ] == (_problems(fleet, lines))


def test_a_wrong_url_and_an_unknown_model_are_named(fleet: RunningFleet) -> None:
    wrong_url = json.loads(chat_lines(1)) | {"url": "/v1/embeddings", "custom_id": "a"}
    body = {"model": "nobody", "messages": []}
    lines = json.dumps(wrong_url).encode() + b"\n" + request_lines(CHAT, [body])

    assert [
        ("invalid_url", 1, "url"),
        ("model_not_found", 2, "body.model"),
    ] == _problems(fleet, lines)


def test_a_file_that_is_too_large_is_refused_at_upload(fleet: RunningFleet) -> None:
    fleet.restart_gateway(BATCHYARD_MAX_UPLOAD_BYTES="100000")
    with pytest.raises(openai.APIStatusError) as caught:
        fleet.client.files.create(file=("in.jsonl", b"x" * 100_001), purpose="batch")
    fleet.restart_gateway(BATCHYARD_MAX_UPLOAD_BYTES="209715200")

    assert caught.value.status_code in (400, 413)


async def test_a_message_that_does_not_decode_goes_to_the_dead_letters_and_blocks_nobody(
    fleet: RunningFleet,
) -> None:
    connection = await aio_pika.connect(fleet.environment["BATCHYARD_AMQP_URL"])
    async with connection:
        channel = await connection.channel()
        exchange = await channel.get_exchange(topology.SUBMIT_EXCHANGE, ensure=False)
        await exchange.publish(
            aio_pika.Message(b"\xff not json", user_id="demo", type="nonsense"),
            topology.submit_key("demo"),
        )
    service = await aio_pika.connect(fleet.addresses.amqp_url)
    async with service:
        channel = await service.channel()
        dead = await channel.get_queue(topology.DEAD_QUEUE)
        message = await dead.get(timeout=10, fail=False)
        for _ in range(100):
            if message is not None:
                break
            message = await dead.get(timeout=10, fail=False)
        assert message is not None
        await message.ack()

    assert message.body == b"\xff not json"
    assert _problems(fleet, b"{}\n")


def test_a_model_that_cannot_load_fails_its_batch_with_the_reason_and_does_not_spin(
    fleet: RunningFleet,
) -> None:
    ended = fleet.wait(fleet.first_batches[BROKEN_MODEL], seconds=COLD_SECONDS)

    assert ended.status == "failed"
    assert ended.errors is not None
    assert ended.errors.data is not None
    problem = ended.errors.data[0]
    assert problem.code == "engine_failed"
    assert "does not exist" in (problem.message or "")
    # Both end after the batch, and nobody starts them again for it.
    until(lambda: not fleet.lane_jobs(BROKEN_MODEL) and not fleet.engines(BROKEN_MODEL), 60)
    healthy = fleet.client.models.list()
    assert CHAT_MODEL in [model.id for model in healthy]
