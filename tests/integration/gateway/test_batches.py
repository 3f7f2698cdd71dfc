import asyncio
import json
import time
from typing import Any

import aio_pika
import msgspec
import pytest
from openai import BadRequestError, ConflictError, NotFoundError

from shared.bus import topology
from shared.ledger.commits import fail
from shared.ledger.manifests import Manifest, manifest_key
from shared.lifecycle import Event
from shared.openai.endpoints import ENDPOINTS
from shared.state import State
from shared.storage import Storage
from tests.eventually import eventually
from tests.integration.gateway.conftest import Caller, Gateway

LINE = b'{"custom_id":"a","method":"POST","url":"/v1/embeddings","body":{"model":"tiny"}}\n'
NOTHING = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}


@pytest.fixture
async def file_id(acme: Caller) -> str:
    return (await acme.openai.files.create(file=LINE, purpose="batch")).id


async def test_a_new_batch_has_every_key(acme: Caller, file_id: str) -> None:
    answer = await acme.http.post("/v1/batches", json=_params(file_id))

    batch = answer.json()
    assert answer.status_code == 200
    assert batch["id"].startswith("batch_")
    assert len(batch["id"]) == len("batch_") + 32
    assert abs(batch["created_at"] - time.time()) < 60
    assert batch == {
        "id": batch["id"],
        "object": "batch",
        "endpoint": "/v1/embeddings",
        "model": None,
        "errors": None,
        "input_file_id": file_id,
        "completion_window": "24h",
        "status": "validating",
        "output_file_id": None,
        "error_file_id": None,
        "created_at": batch["created_at"],
        "expires_at": batch["created_at"] + 86_400,
        **{
            f"{status}_at": None
            for status in (
                *("in_progress", "finalizing", "completed", "failed"),
                *("expired", "cancelling", "cancelled"),
            )
        },
        "request_counts": {"total": 0, "completed": 0, "failed": 0},
        "usage": {
            **NOTHING,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
        "metadata": None,
    }


async def test_the_sdk_makes_and_reads_a_batch(acme: Caller, file_id: str) -> None:
    batch = await acme.openai.batches.create(
        input_file_id=file_id,
        endpoint="/v1/embeddings",
        completion_window="24h",
        metadata={"who": "ünïcode 🙂"},
    )

    assert batch.metadata == {"who": "ünïcode 🙂"}
    assert await acme.openai.batches.retrieve(batch.id) == batch
    assert [one.id async for one in acme.openai.batches.list()] == [batch.id]


async def test_the_manifest_holds_all_that_was_asked_for(
    acme: Caller, file_id: str, bucket: Storage
) -> None:
    answer = await acme.http.post(
        "/v1/batches",
        json=_params(
            file_id,
            completion_window="7d",
            priority=9,
            metadata={},
            output_expires_after={"anchor": "created_at", "seconds": 3600},
        ),
    )

    batch = answer.json()
    key = f"files/{acme.tenant}/{file_id}"
    manifest = msgspec.json.decode(await bucket.get(manifest_key(batch["id"])), type=Manifest)
    assert (manifest.tenant, manifest.door, manifest.priority) == (acme.tenant, "http", 9)
    assert (manifest.bucket, manifest.key, manifest.size) == (bucket.bucket, key, len(LINE))
    assert manifest.etag == (await bucket.stat(key)).etag
    assert manifest.output_seconds == 3600
    assert manifest.expires_at - manifest.created_at == 7 * 86_400
    assert batch["metadata"] == {}


async def test_the_dispatcher_gets_a_message_about_the_batch(
    acme: Caller, file_id: str, gateway: Gateway, gateway_state: State
) -> None:
    batch = (await acme.http.post("/v1/batches", json=_params(file_id))).json()

    async def is_relayed() -> bool:
        return await gateway_state.outbox.length("submissions") == 0

    await eventually(is_relayed)
    message = await _message_of(batch["id"], gateway.settings.amqp_url.get_secret_value())
    assert message.type == "batch.ready.v1"
    assert message.routing_key == f"submit.v1.{acme.tenant}"
    assert json.loads(message.body) == {"batch_id": batch["id"]}


@pytest.mark.parametrize(
    ("change", "param", "code", "message"),
    [
        (
            {"input_file_id": None},
            "input_file_id",
            "missing_required_parameter",
            "Missing required parameter: 'input_file_id'.",
        ),
        (
            {"endpoint": 5},
            "endpoint",
            "invalid_type",
            "Invalid type for 'endpoint': expected a string, but got an integer instead.",
        ),
        (
            {"endpoint": "/v1/foo"},
            "endpoint",
            "invalid_value",
            "Invalid value: '/v1/foo'. Supported values are: "
            + ", ".join(f"'{path}'" for path in ENDPOINTS)
            + ".",
        ),
        (
            {"completion_window": "1h"},
            "completion_window",
            "invalid_value",
            "Invalid value: '1h'. Supported values are: '24h', '7d'.",
        ),
        (
            {"metadata": {"tags": ["a"]}},
            "metadata.tags",
            "invalid_type",
            "Invalid type for 'metadata.tags': expected a string, but got an array instead.",
        ),
        (
            {"metadata": "x"},
            "metadata",
            "invalid_type",
            "Invalid type for 'metadata': expected an object, but got a string instead.",
        ),
        (
            {"metadata": {str(n): "" for n in range(17)}},
            "metadata",
            "object_above_max_properties",
            "Invalid 'metadata': too many properties. Expected an object with at most 16 "
            "properties, but got an object with 17 properties instead.",
        ),
        (
            {"metadata": {"🙂" * 65: ""}},
            "metadata." + "🙂" * 65,
            "string_above_max_length",
            f"Invalid property name in 'metadata': '{'🙂' * 65}' is too long. Expected a string "
            "with maximum length 64, but got a string with length 65 instead.",
        ),
        (
            {"metadata": {"k": "🙂" * 513}},
            "metadata.k",
            "string_above_max_length",
            "Invalid 'metadata.k': string too long. Expected a string with maximum length 512, "
            "but got a string with length 513 instead.",
        ),
        (
            {"output_expires_after": {"anchor": "created_at", "seconds": 10_000_000}},
            "output_expires_after.seconds",
            "integer_above_max_value",
            "Invalid 'output_expires_after.seconds': integer above maximum value. Expected a "
            "value <= 2592000, but got 10000000 instead.",
        ),
        (
            {"output_expires_after": {"anchor": 5, "seconds": 3600}},
            "output_expires_after.anchor",
            "invalid_type",
            "Invalid type for 'output_expires_after.anchor': expected one of 'created_at', but "
            "got an integer instead.",
        ),
        (
            {"priority": 10},
            "priority",
            "integer_above_max_value",
            "Invalid 'priority': integer above maximum value. Expected a value <= 9, but got 10 "
            "instead.",
        ),
        (
            {"speed": "fast"},
            "speed",
            "unknown_parameter",
            "Unknown parameter: 'speed'.",
        ),
    ],
)
async def test_a_wrong_field_is_explained(
    change: dict[str, Any], param: str, code: str, message: str, acme: Caller
) -> None:
    answer = await acme.http.post("/v1/batches", json={**_params("file-x"), **change})

    assert answer.status_code == 400
    assert answer.json() == {
        "error": {
            "message": message,
            "type": "invalid_request_error",
            "param": param,
            "code": code,
        }
    }


@pytest.mark.parametrize("field", ["input_file_id", "endpoint", "completion_window"])
async def test_a_missing_field_is_named(field: str, acme: Caller) -> None:
    params = _params("file-x")
    del params[field]

    answer = await acme.http.post("/v1/batches", json=params)

    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "message": f"Missing required parameter: '{field}'.",
        "type": "invalid_request_error",
        "param": field,
        "code": "missing_required_parameter",
    }


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "We could not parse the JSON body of your request."),
        (b"{", "We could not parse the JSON body of your request."),
        (b'{"endpoint":"\\ud800"}', "We could not parse the JSON body of your request."),
        (b"[" * 100_000, "We could not parse the JSON body of your request."),
        (b"[]", "Invalid type for the request body: expected an object, but got an array"),
    ],
)
async def test_a_body_that_is_no_object_is_refused(body: bytes, message: str, acme: Caller) -> None:
    answer = await acme.http.post("/v1/batches", content=body)

    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith(message)


async def test_a_huge_body_is_refused(acme: Caller) -> None:
    answer = await acme.http.post("/v1/batches", content=b" " * 2_000_000)

    assert answer.status_code == 413
    assert answer.json()["error"]["type"] == "invalid_request_error"


async def test_metadata_may_be_null_or_as_large_as_allowed(acme: Caller, file_id: str) -> None:
    full = {f"{'🙂' * 62}{n:02d}": "é" * 512 for n in range(16)}

    for metadata in (None, {}, full):
        answer = await acme.http.post("/v1/batches", json=_params(file_id, metadata=metadata))

        assert answer.status_code == 200
        assert answer.json()["metadata"] == metadata


async def test_an_id_of_a_file_has_a_greatest_length(acme: Caller) -> None:
    answer = await acme.http.post("/v1/batches", json=_params("x" * 257))

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "string_above_max_length"
    assert len(answer.text) < 500


async def test_an_unknown_input_file_is_refused_at_once(acme: Caller) -> None:
    with pytest.raises(BadRequestError) as refused:
        await acme.openai.batches.create(
            input_file_id="file-none", endpoint="/v1/embeddings", completion_window="24h"
        )

    assert str(refused.value.message).endswith(
        f"Cannot find file file-none, or project {acme.tenant} does not have access to it."
    )
    assert refused.value.param == "file_id"


async def test_anothers_input_file_is_unknown(globex: Caller, file_id: str) -> None:
    with pytest.raises(BadRequestError, match="Cannot find file"):
        await globex.openai.batches.create(
            input_file_id=file_id, endpoint="/v1/embeddings", completion_window="24h"
        )


async def test_a_file_of_another_purpose_is_no_input(acme: Caller) -> None:
    file = await acme.openai.files.create(file=LINE, purpose="user_data")

    with pytest.raises(BadRequestError, match="expected 'batch', but got 'user_data'") as refused:
        await acme.openai.batches.create(
            input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h"
        )

    assert refused.value.param == "input_file_id"


async def test_without_a_key_every_call_makes_a_batch(acme: Caller, file_id: str) -> None:
    first, second = [
        (await acme.http.post("/v1/batches", json=_params(file_id))).json()["id"] for _ in range(2)
    ]

    assert first != second


@pytest.mark.parametrize("spelling", ["header", "body"])
async def test_one_key_makes_one_batch(spelling: str, acme: Caller, file_id: str) -> None:
    async def create(**changes: Any) -> Any:
        if spelling == "header":
            changes["extra_headers"] = {"Idempotency-Key": "order 17"}
        else:
            changes["extra_body"] = {"idempotency_key": "order 17"}
        return await acme.openai.batches.create(
            **{
                "input_file_id": file_id,
                "endpoint": "/v1/embeddings",
                "completion_window": "24h",
                **changes,
            }
        )

    made = await asyncio.gather(*(create(metadata={"b": "1", "a": "2"}) for _ in range(5)))
    again = await create(metadata={"a": "2", "b": "1"})
    with pytest.raises(ConflictError, match="conflict") as refused:
        await create(metadata={"a": "3"})

    assert {batch.id for batch in made} == {again.id}
    assert again.created_at == made[0].created_at
    assert "'order 17'" in refused.value.message
    assert refused.value.response.headers["x-should-retry"] == "false"
    assert len((await acme.openai.batches.list()).data) == 1


async def test_a_key_means_the_same_in_both_spellings(acme: Caller, file_id: str) -> None:
    in_body = _params(file_id, idempotency_key="k")
    headers = {"idempotency-key": "k"}

    answers = [
        await acme.http.post("/v1/batches", json=in_body),
        await acme.http.post("/v1/batches", json=_params(file_id), headers=headers),
        await acme.http.post("/v1/batches", json=in_body, headers=headers),
    ]
    both = await acme.http.post("/v1/batches", json=in_body, headers={"idempotency-key": "l"})

    assert [answer.status_code for answer in answers] == [200] * 3
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert both.status_code == 400
    assert both.json()["error"]["param"] == "idempotency_key"


async def test_a_repeat_meets_its_batch_also_when_the_input_is_gone(
    acme: Caller, file_id: str
) -> None:
    params = _params(file_id, idempotency_key="k")
    first = await acme.http.post("/v1/batches", json=params)
    await acme.openai.files.delete(file_id)

    again = await acme.http.post("/v1/batches", json=params)
    other = await acme.http.post("/v1/batches", json={**params, "priority": 1})

    assert again.status_code == 200
    assert again.json() == first.json()
    assert other.status_code == 409


@pytest.mark.parametrize("place", ["header", "body"])
async def test_a_key_has_a_greatest_length(place: str, acme: Caller, file_id: str) -> None:
    async def create(key: str) -> Any:
        if place == "header":
            return await acme.http.post(
                "/v1/batches", json=_params(file_id), headers={"idempotency-key": key}
            )
        return await acme.http.post("/v1/batches", json=_params(file_id, idempotency_key=key))

    fits, is_longer = await create("k" * 255), await create("k" * 256)

    assert fits.status_code == 200
    assert is_longer.status_code == 400
    assert is_longer.json()["error"]["code"] == "string_above_max_length"
    assert "256" in is_longer.json()["error"]["message"]


async def test_the_key_of_one_tenant_is_not_that_of_another(acme: Caller, globex: Caller) -> None:
    made = set()
    for caller in (acme, globex):
        file = await caller.openai.files.create(file=LINE, purpose="batch")
        batch = await caller.openai.batches.create(
            input_file_id=file.id,
            endpoint="/v1/embeddings",
            completion_window="24h",
            extra_headers={"Idempotency-Key": "k"},
        )
        made.add(batch.id)

    assert len(made) == 2


async def test_pages_are_newest_first_and_exact(acme: Caller, file_id: str) -> None:
    made = [
        (await acme.http.post("/v1/batches", json=_params(file_id))).json()["id"] for _ in range(5)
    ]

    listed = [batch.id async for batch in acme.openai.batches.list(limit=2)]
    page = (await acme.http.get("/v1/batches?limit=4")).json()
    last = (await acme.http.get(f"/v1/batches?limit=4&after={page['last_id']}")).json()

    assert listed == made[::-1]
    assert (page["first_id"], page["last_id"], page["has_more"]) == (made[4], made[1], True)
    assert ([batch["id"] for batch in last["data"]], last["has_more"]) == ([made[0]], False)


async def test_a_list_of_what_changed_is_exact_and_the_last_changed_is_first(
    acme: Caller, globex: Caller, file_id: str, gateway_state: State
) -> None:
    ids = [(await _create(acme, file_id))["id"] for _ in range(5)]
    changes = await gateway_state.events.changes(acme.tenant, after=0, limit=9)
    since = changes[1].at / 1_000_000
    await gateway_state.apply(ids[2], Event.CANCEL_REQUESTED)

    found = [
        batch.id
        async for batch in acme.openai.batches.list(limit=2, extra_query={"updated_after": since})
    ]
    none = await globex.http.get("/v1/batches", params={"updated_after": 0})

    assert found == [ids[2], ids[4], ids[3]]
    assert none.json()["data"] == []


@pytest.mark.parametrize("time", ["", "yesterday", "-1", "1e300", "nan"])
async def test_an_invalid_time_is_refused(time: str, acme: Caller) -> None:
    answer = await acme.http.get("/v1/batches", params={"updated_after": time})

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "updated_after"


async def test_results_in_the_last_event_are_asked_for_with_a_field(
    acme: Caller, file_id: str, gateway_state: State
) -> None:
    first = await _create(acme, file_id, deliver={"results": True}, idempotency_key="d")
    plain = await _create(acme, file_id, deliver={"results": False})

    other = await acme.http.post("/v1/batches", json={**_params(file_id), "idempotency_key": "d"})
    wrong = await acme.http.post(
        "/v1/batches", json={**_params(file_id), "deliver": {"results": "yes"}}
    )

    assert (await gateway_state.batches.get(first["id"])).fields["deliver_results"] == "1"
    assert "deliver_results" not in (await gateway_state.batches.get(plain["id"])).fields
    assert other.status_code == 409
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "deliver.results")


async def test_a_limit_of_none_is_the_usual_page(acme: Caller, file_id: str) -> None:
    made = (await acme.http.post("/v1/batches", json=_params(file_id))).json()

    page = (await acme.http.get("/v1/batches?limit=0")).json()

    assert [batch["id"] for batch in page["data"]] == [made["id"]]
    assert page["has_more"] is False


@pytest.mark.parametrize("query", ["limit=0", "after=after", "after=", "after=%00"])
async def test_odd_but_legal_listings_are_answered(query: str, acme: Caller) -> None:
    answer = await acme.http.get(f"/v1/batches?{query}")

    assert answer.status_code == 200
    assert answer.json()["data"] == []
    assert answer.json()["has_more"] is False


@pytest.mark.parametrize(
    ("limit", "code"),
    [("-1", "integer_below_min_value"), ("many", "invalid_type"), ("1.5", "invalid_type")],
)
async def test_a_limit_that_is_no_count_is_refused(limit: str, code: str, acme: Caller) -> None:
    answer = await acme.http.get(f"/v1/batches?limit={limit}")

    assert answer.status_code == 400
    assert (answer.json()["error"]["param"], answer.json()["error"]["code"]) == ("limit", code)


async def test_a_limit_above_the_maximum_is_refused(acme: Caller) -> None:
    answer = await acme.http.get("/v1/batches?limit=101")

    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "message": "Invalid 'limit': integer above maximum value. Expected a value <= 100, but "
        "got 101 instead.",
        "type": "invalid_request_error",
        "param": "limit",
        "code": "integer_above_max_value",
    }


@pytest.mark.parametrize("batch_id", ["batch_id", "batch_" + "0" * 32, "%00", "x" * 2000])
async def test_an_unknown_batch_is_not_found(batch_id: str, acme: Caller) -> None:
    for answer in (
        await acme.http.get(f"/v1/batches/{batch_id}"),
        await acme.http.post(f"/v1/batches/{batch_id}/cancel"),
    ):
        assert answer.status_code == 404
        assert answer.json()["error"]["message"].startswith("No batch found with id '")


async def test_anothers_batch_is_not_found_by_any_verb(
    acme: Caller, globex: Caller, file_id: str
) -> None:
    batch = (await acme.http.post("/v1/batches", json=_params(file_id))).json()

    with pytest.raises(NotFoundError, match="No batch found with id"):
        await globex.openai.batches.retrieve(batch["id"])
    with pytest.raises(NotFoundError, match="No batch found with id"):
        await globex.openai.batches.cancel(batch["id"])

    assert (await globex.openai.batches.list()).data == []
    assert (await globex.openai.batches.list(after=batch["id"])).data == []
    assert (await acme.openai.batches.retrieve(batch["id"])).status == "validating"


async def test_a_cancel_has_no_body_and_may_be_repeated(
    acme: Caller, file_id: str, gateway_state: State
) -> None:
    made = (await acme.http.post("/v1/batches", json=_params(file_id))).json()
    url = f"/v1/batches/{made['id']}/cancel"

    # OpenAI's SDK for Python says JSON and sends nothing; the one for Node says nothing.
    first = await acme.http.post(url, headers={"content-type": "application/json"})
    second = await acme.http.post(url)
    await gateway_state.apply(made["id"], Event.CANCEL_COMMITTED)
    third = await acme.http.post(url)

    assert [answer.status_code for answer in (first, second, third)] == [200, 200, 200]
    assert first.json()["status"] == "cancelling"
    assert first.json()["cancelling_at"] is not None
    assert second.json() == first.json()
    assert third.json()["status"] == "cancelled"


@pytest.mark.parametrize(
    ("status", "events"),
    [
        ("failed", [Event.INPUT_REJECTED]),
        ("completed", [Event.INPUT_ACCEPTED, Event.ROWS_FINISHED, Event.OUTPUT_COMMITTED]),
        ("expired", [Event.INPUT_ACCEPTED, Event.WINDOW_CLOSED, Event.EXPIRY_COMMITTED]),
    ],
)
async def test_a_batch_that_has_ended_cannot_be_cancelled(
    status: str, events: list[Event], acme: Caller, file_id: str, gateway_state: State
) -> None:
    made = (await acme.http.post("/v1/batches", json=_params(file_id))).json()
    for event in events:
        await gateway_state.apply(made["id"], event, {"plan": "p"})

    answer = await acme.http.post(f"/v1/batches/{made['id']}/cancel")

    assert answer.status_code == 409
    assert answer.headers["x-should-retry"] == "false"
    assert answer.json()["error"] == {
        "message": f"Cannot cancel a batch with status '{status}'.",
        "type": "invalid_request_error",
        "param": None,
        "code": None,
    }


async def test_the_input_may_be_deleted_while_its_batch_lives(
    acme: Caller, file_id: str, bucket: Storage, gateway_state: State
) -> None:
    made = (await acme.http.post("/v1/batches", json=_params(file_id))).json()

    await acme.openai.files.delete(file_id)

    key = f"files/{acme.tenant}/{file_id}"
    assert await bucket.get(key) == LINE
    assert key not in await gateway_state.files.garbage(limit=100_000)
    assert (await acme.openai.batches.retrieve(made["id"])).input_file_id == file_id


def _params(file_id: str, **changes: Any) -> dict[str, Any]:
    return {
        "input_file_id": file_id,
        "endpoint": "/v1/embeddings",
        "completion_window": "24h",
        **changes,
    }


async def _create(caller: Caller, file_id: str, **changes: Any) -> dict[str, Any]:
    answer = await caller.http.post("/v1/batches", json=_params(file_id, **changes))
    batch: dict[str, Any] = answer.raise_for_status().json()
    return batch


async def _message_of(batch_id: str, amqp_url: str) -> aio_pika.abc.AbstractIncomingMessage:
    async with await aio_pika.connect(amqp_url) as connection:
        queue = await (await connection.channel()).get_queue(topology.SUBMIT_QUEUE)
        while message := await queue.get(no_ack=True, fail=False):
            if message.message_id == batch_id:
                return message
    raise AssertionError(f"There is no message for {batch_id}.")


async def test_a_batch_is_found_again_by_its_key(
    acme: Caller, globex: Caller, file_id: str
) -> None:
    made = await acme.openai.batches.create(
        input_file_id=file_id,
        endpoint="/v1/embeddings",
        completion_window="24h",
        extra_headers={"Idempotency-Key": "order 18"},
    )
    await acme.openai.batches.create(
        input_file_id=file_id, endpoint="/v1/embeddings", completion_window="24h"
    )

    found = await acme.http.get("/v1/batches", params={"idempotency_key": "order 18"})
    others = await globex.http.get("/v1/batches", params={"idempotency_key": "order 18"})
    unknown = await acme.http.get("/v1/batches", params={"idempotency_key": "order 19"})

    assert [one["id"] for one in found.json()["data"]] == [made.id]
    assert others.json()["data"] == unknown.json()["data"] == []


async def test_a_failed_batch_has_all_its_reasons_of_which_redis_keeps_the_first_ones(
    acme: Caller, file_id: str, gateway_state: State, bucket: Storage
) -> None:
    batch = await acme.openai.batches.create(
        input_file_id=file_id, endpoint="/v1/embeddings", completion_window="24h"
    )
    reasons = [{"code": "bad", "line": line, "message": "x" * 200} for line in range(1, 1001)]
    fields = {"errors": json.dumps(reasons), "first_error": "x"}

    await fail(gateway_state, bucket, batch.id, Event.INPUT_REJECTED, fields)

    record = await gateway_state.batches.get(batch.id)
    assert sum(len(text) for text in record.fields.values()) < 8192
    one = await acme.openai.batches.retrieve(batch.id)
    listed = await acme.openai.batches.list(limit=1)
    for found in (one, listed.data[0]):
        assert found.errors is not None
        assert [error.line for error in found.errors.data or []] == list(range(1, 1001))
