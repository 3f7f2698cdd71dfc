"""Pause, resume and change a batch over HTTP."""

import asyncio
from typing import Any

import pytest
from openai import ConflictError
from openai.types import Batch

from shared.ledger.packs import read_manifest
from shared.lifecycle import Event
from shared.state import State
from shared.storage import Storage
from tests.batches import validating
from tests.integration.gateway.conftest import Caller


async def test_a_paused_batch_says_so_until_it_is_resumed(
    acme: Caller, gateway_state: State
) -> None:
    batch_id = await validating(gateway_state, tenant=acme.tenant)

    paused = await acme.http.post(f"/v1/batches/{batch_id}/pause")
    again = await acme.http.post(f"/v1/batches/{batch_id}/pause")
    read = await acme.http.get(f"/v1/batches/{batch_id}")
    resumed = await acme.openai.post(f"/batches/{batch_id}/resume", cast_to=Batch)

    assert [answer.status_code for answer in (paused, again, read)] == [200, 200, 200]
    assert paused.json()["paused"] is True
    assert again.json() == paused.json() == {**read.json(), "requests_in_engine": 0}
    assert resumed.status == "validating"
    assert "paused" not in resumed.model_dump()


@pytest.mark.parametrize(
    ("call", "body", "doing"),
    [
        ("/pause", None, "pause"),
        ("/resume", None, "resume"),
        ("", {"priority": 1}, "change the priority of"),
    ],
)
async def test_what_has_ended_cannot_be_steered(
    call: str, body: dict[str, Any] | None, doing: str, acme: Caller, gateway_state: State
) -> None:
    batch_id = await validating(gateway_state, tenant=acme.tenant)
    await gateway_state.apply(batch_id, Event.INPUT_REJECTED)

    with pytest.raises(ConflictError) as refused:
        await acme.openai.post(f"/batches/{batch_id}{call}", cast_to=Batch, body=body)

    assert str(refused.value).endswith(f"Cannot {doing} a batch with status 'failed'.")
    assert refused.value.response.headers["x-should-retry"] == "false"


async def test_priority_and_metadata_change_each_on_its_own(
    acme: Caller, gateway_state: State
) -> None:
    batch_id = await validating(gateway_state, tenant=acme.tenant)
    path = f"/v1/batches/{batch_id}"

    named = (await acme.http.post(path, json={"metadata": {"who": "me"}})).json()
    await acme.http.post(path, json={"priority": 9})
    record = await gateway_state.batches.get(batch_id)
    bare = (await acme.http.post(path, json={"metadata": None})).json()

    assert named["metadata"] == {"who": "me"}
    assert record.number("priority") == 9
    assert record.to_openai().metadata == {"who": "me"}
    assert bare["metadata"] is None
    assert (await gateway_state.batches.get(batch_id)).number("priority") == 9


async def test_what_was_changed_outlives_the_loss_of_redis(
    acme: Caller, gateway_state: State, bucket: Storage
) -> None:
    file = await acme.openai.files.create(file=("in.jsonl", b"{}"), purpose="batch")
    batch = await acme.openai.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"who": "me"},
        extra_body={"idempotency_key": "once"},
    )
    path = f"/v1/batches/{batch.id}"

    changes = [{"priority": 9}, {"metadata": {"who": "you"}}, {"priority": 8}, {"priority": 7}]
    await asyncio.gather(*(acme.http.post(path, json=change) for change in changes))

    record = await gateway_state.batches.get(batch.id)
    manifest = await read_manifest(bucket, batch.id)
    assert manifest.metadata == '{"who": "you"}'
    assert manifest.priority == record.number("priority") in (7, 8, 9)
    # The same creation still is the same batch.
    again = await acme.openai.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"who": "me"},
        extra_body={"idempotency_key": "once"},
    )
    assert (again.id, again.metadata) == (batch.id, {"who": "you"})


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({}, "priority", "Nothing to change: give 'priority', 'metadata' or both."),
        (
            {"priority": 10},
            "priority",
            "Invalid 'priority': integer above maximum value. Expected a value <= 9, but got 10 "
            "instead.",
        ),
        (
            {"priority": None},
            "priority",
            "Invalid type for 'priority': expected an integer, but got null instead.",
        ),
        ({"status": "completed"}, "status", "Unknown parameter: 'status'."),
    ],
)
async def test_a_change_that_cannot_be_made_is_refused_with_its_reason(
    body: dict[str, Any], param: str, message: str, acme: Caller, gateway_state: State
) -> None:
    batch_id = await validating(gateway_state, tenant=acme.tenant)

    answer = await acme.http.post(f"/v1/batches/{batch_id}", json=body)

    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["param"], error["message"]) == (param, message)


@pytest.mark.parametrize("call", ["/pause", "/resume", ""])
async def test_nobody_steers_anothers_batch(
    call: str, acme: Caller, globex: Caller, gateway_state: State
) -> None:
    batch_id = await validating(gateway_state, tenant=acme.tenant)

    answer = await globex.http.post(f"/v1/batches/{batch_id}{call}", json={"priority": 1})

    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == f"No batch found with id '{batch_id}'."


async def test_the_schema_says_of_each_addition_that_it_is_one(acme: Caller) -> None:
    paths = (await acme.http.get("/openapi.json")).json()["paths"]

    for method, path in (
        ("get", "/v1/batches/{batch_id}/events"),
        ("get", "/v1/batches/{batch_id}/results"),
        ("get", "/v1/batches/{batch_id}/explain"),
        ("post", "/v1/batches/{batch_id}/retry"),
        ("post", "/v1/batches/{batch_id}/pause"),
        ("post", "/v1/batches/{batch_id}/resume"),
        ("post", "/v1/batches/{batch_id}"),
    ):
        call = paths[path][method]
        assert call["x-batchyard"].startswith("An addition to OpenAI's API.")
        assert len(call["description"]) > 50
    stream = paths["/v1/batches/{batch_id}/events"]["get"]["responses"]["200"]
    assert list(stream["content"]) == ["text/event-stream"]
    headers = paths["/v1/batches/{batch_id}/results"]["get"]["responses"]["200"]["headers"]
    assert "x-batchyard-next-offset" in headers
