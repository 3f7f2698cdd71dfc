"""Open batches by message: created, given requests and closed, through a real broker."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from shared.bus import topology
from shared.bus.connection import Bus
from shared.bus.open_messages import CLOSE, REQUESTS
from shared.bus.received import RECEIVED
from shared.catalog import Catalog
from shared.lifecycle import Status
from shared.state import State
from shared.storage import Storage
from shared.submission.additions import close
from shared.submission.admission import NewBatchQuota
from shared.tenants import TenantSettings
from tests.batches import validating
from tests.integration.dispatcher.conftest import CHAT, BatchYard, good, line
from tests.integration.dispatcher.doors import Door, an_adder, an_intake

_UNKNOWN = f"batch_{'0' * 32}"


def _opening(model: str = "m") -> bytes:
    body = {"schema": "batch.submit/1", "endpoint": CHAT, "input": {"kind": "open", "model": model}}
    return json.dumps(body).encode()


def _requests(*names: str, **body: Any) -> list[Any]:
    return [json.loads(line(name, **body)) for name in names]


async def _say(
    door: Door, kind: str, batch_id: str, message_id: str | None = None, **more: Any
) -> dict[str, Any]:
    """Publish a message to a batch; what it is answered with."""
    body = {"schema": RECEIVED[kind].schema, "batch_id": batch_id, **more}
    named = {} if message_id is None else {"message_id": message_id}
    key = RECEIVED[kind].key(door.tenant)
    await door.send(json.dumps(body).encode(), key=key, type=kind, **named)
    await door.settle(len(door.settled) + 1)
    reply, _ = await door.reply()
    return reply


async def _open(door: Door) -> str:
    """A new open batch."""
    batch_id = await door.send(_opening())
    await door.settle(len(door.settled) + 1)
    reply, _ = await door.reply()
    assert (reply["status"], reply["batch"]["id"]) == ("accepted", batch_id)
    return batch_id


async def _add(door: Door, batch_id: str, requests: Sequence[Any], **more: Any) -> dict[str, Any]:
    return await _say(door, REQUESTS, batch_id, requests=requests, **more)


async def _names(state: State, yard: BatchYard, batch_id: str) -> list[str]:
    """The names in the output file of a batch that has nothing left to run."""
    await yard.finaliser.finish(batch_id)
    record = await state.batches.get(batch_id)
    assert record.status is Status.COMPLETED
    file = await state.files.get(record.tenant, record.fields["output_file_id"])
    content = await yard.storage.get(file.key)
    return [json.loads(one)["custom_id"] for one in content.splitlines()]


async def test_requests_come_by_message_until_the_batch_is_closed_by_one(
    acme: Door, state: State, yard: BatchYard
) -> None:
    batch_id = await _open(acme)
    opened = await state.batches.get(batch_id)

    first = await _add(acme, batch_id, _requests("a", "b"), message_id="m-1")
    await yard.run(batch_id, lambda _: good())
    await _add(acme, batch_id, _requests("c"))
    closed = await _say(acme, CLOSE, batch_id, "m-2")
    await yard.run(batch_id, lambda _: good())

    assert (opened.status, opened.takes_rows) == (Status.IN_PROGRESS, True)
    assert (first["status"], first["duplicate"]) == ("accepted", False)
    assert first["requests"] == {"added": 2, "repeated": 0, "total": 2}
    assert (closed["status"], closed["duplicate"], "requests" in closed) == (
        "accepted",
        False,
        False,
    )
    assert await _names(state, yard, batch_id) == ["a", "b", "c"]


async def test_answers_name_the_message_and_not_the_batch(acme: Door) -> None:
    batch_id = await _open(acme)
    body = {"schema": "batch.close/1", "batch_id": batch_id}

    await acme.send(
        json.dumps(body).encode(),
        key=topology.close_key(acme.tenant),
        type=CLOSE,
        message_id="m-1",
        correlation_id="c-1",
    )

    _, message = await acme.reply()
    assert (message.message_id, message.correlation_id) == ("m-1.close.reply", "c-1")


async def test_a_message_that_comes_again_changes_nothing_even_after_the_end(
    acme: Door, state: State, yard: BatchYard
) -> None:
    batch_id = await _open(acme)
    requests = _requests("a", "b")

    await _add(acme, batch_id, requests, message_id="m-1")
    again = await _add(acme, batch_id, requests, message_id="m-1")
    await _say(acme, CLOSE, batch_id, "m-2")
    closed = await _add(acme, batch_id, requests, message_id="m-1")
    await yard.run(batch_id, lambda _: good())
    names = await _names(state, yard, batch_id)
    late = await _add(acme, batch_id, requests, message_id="m-1")
    late_close = await _say(acme, CLOSE, batch_id, "m-2")

    for reply in (again, closed, late):
        assert (reply["status"], reply["duplicate"]) == ("accepted", True)
        assert reply["requests"] == {"added": 0, "repeated": 2, "total": 2}
    assert (late_close["status"], late_close["duplicate"]) == ("accepted", True)
    assert late_close["batch"]["status"] == "completed"
    assert names == ["a", "b"]


async def test_the_same_request_by_http_and_by_message_is_one(
    acme: Door, state: State, storage: Storage, catalog: Catalog
) -> None:
    batch_id = await _open(acme)
    written = line("a", temperature=1.0)
    adder = an_adder(state, storage, catalog, NewBatchQuota(catalog, 1000, 1000, 1000))
    await adder.add(await state.batches.get(batch_id), written + b"\n")

    body = b'{"schema": "batch.requests/1", "batch_id": "%s", "requests": [%s]}'
    await acme.send(
        body % (batch_id.encode(), written),
        key=topology.requests_key(acme.tenant),
        type=REQUESTS,
    )

    reply, _ = await acme.reply()
    assert reply["requests"] == {"added": 0, "repeated": 1, "total": 1}


async def test_another_request_of_a_known_name_is_refused_with_its_line(acme: Door) -> None:
    batch_id = await _open(acme)
    await _add(acme, batch_id, _requests("a", "b"))

    refused = await _add(acme, batch_id, [*_requests("c"), *_requests("b", temperature=1)])
    after = await _add(acme, batch_id, _requests("c"))

    assert (refused["status"], refused["error"]["code"]) == ("rejected", "custom_id_conflict")
    assert refused["error"]["param"] == "requests"
    assert "line 2" in refused["error"]["message"]
    assert after["requests"] == {"added": 1, "repeated": 0, "total": 3}


@pytest.mark.parametrize(
    ("requests", "code", "says"),
    [
        ([], "schema_invalid", "requests"),
        (_requests("a", "a"), "requests_invalid", "line 2"),
        (_requests("a", model="other"), "requests_invalid", "line 1"),
        ([{**_requests("a")[0], "url": "/v1/embeddings"}], "requests_invalid", "line 1"),
        (_requests(*(f"row-{row}" for row in range(51))), "batch_full", "51 requests"),
    ],
)
async def test_requests_that_cannot_be_taken_are_refused_and_none_is_added(
    door: Door,
    state: State,
    storage: Storage,
    bus: Bus,
    catalog: Catalog,
    replying: None,
    requests: list[Any],
    code: str,
    says: str,
) -> None:
    await bus.consume(door.serve(an_intake(state, storage, bus, catalog, rows=50)))
    batch_id = await _open(door)

    refused = await _add(door, batch_id, requests)

    assert (refused["status"], refused["error"]["code"]) == ("rejected", code)
    assert says in refused["error"]["message"]
    assert (await state.batches.get(batch_id)).number("total") == 0


async def test_the_tenants_queue_is_a_limit_by_message_too(acme: Door, state: State) -> None:
    await state.tenants.put(acme.tenant, TenantSettings(enqueued_requests=2))
    batch_id = await _open(acme)
    await _add(acme, batch_id, _requests("a"))

    refused = await _add(acme, batch_id, _requests("b", "c"))

    assert refused["error"]["code"] == "quota_exceeded"
    assert "Limit: 2" in refused["error"]["message"]


@pytest.mark.parametrize("kind", [REQUESTS, CLOSE])
async def test_a_batch_of_another_tenant_is_refused_like_an_unknown_one(
    acme: Door, state: State, kind: str
) -> None:
    theirs = await validating(state, tenant="globex", open_model="m")
    more: dict[str, Any] = {"requests": _requests("a")} if kind == REQUESTS else {}

    unknown = await _say(acme, kind, _UNKNOWN, **more)
    foreign = await _say(acme, kind, theirs, **more)

    assert (unknown["error"]["code"], foreign["error"]["code"]) == ("unknown_batch",) * 2
    assert foreign["error"]["message"].replace(theirs, _UNKNOWN) == unknown["error"]["message"]


@pytest.mark.parametrize("kind", [REQUESTS, CLOSE])
async def test_a_batch_that_was_not_created_open_takes_none_and_is_not_closed(
    acme: Door, state: State, kind: str
) -> None:
    batch_id = await validating(state, tenant=acme.tenant)
    more: dict[str, Any] = {"requests": _requests("a")} if kind == REQUESTS else {}

    refused = await _say(acme, kind, batch_id, **more)

    assert (refused["error"]["code"], refused["error"]["param"]) == ("not_open", "batch_id")
    assert "not created open" in refused["error"]["message"]


@pytest.mark.parametrize("kind", [REQUESTS, CLOSE])
async def test_a_stage_of_a_pipeline_takes_none_and_is_not_closed(
    acme: Door, state: State, kind: str
) -> None:
    batch_id = await validating(state, tenant=acme.tenant, open_model="m", pipeline="pipe_1")
    more: dict[str, Any] = {"requests": _requests("a")} if kind == REQUESTS else {}

    refused = await _say(acme, kind, batch_id, **more)

    assert refused["error"]["code"] == "not_open"
    assert "stage of pipeline" in refused["error"]["message"]


async def test_a_closed_batch_takes_no_more(acme: Door, state: State, storage: Storage) -> None:
    batch_id = await _open(acme)
    await _add(acme, batch_id, _requests("a"))
    await close(state, storage, batch_id)

    refused = await _add(acme, batch_id, _requests("b"))

    assert refused["error"]["code"] == "not_open"
    assert "closed" in refused["error"]["message"]


async def test_an_open_batch_is_for_a_model_that_the_tenant_has(acme: Door, state: State) -> None:
    batch_id = await acme.send(_opening("unheard-of"))

    reply, _ = await acme.reply()

    assert reply["error"]["code"] == "model_not_found"
    assert reply["error"]["param"] == "input.model"
    assert not await state.batches.exists(batch_id)


async def test_one_that_cannot_be_answered_is_a_dead_letter(acme: Door) -> None:
    body = {"schema": "batch.requests/1", "batch_id": _UNKNOWN, "requests": _requests("a")}

    await acme.send(
        json.dumps(body).encode(),
        key=topology.requests_key(acme.tenant),
        type=REQUESTS,
        reply_to=None,
    )

    letter = await acme.dead()
    assert [reason.code for reason in letter.reasons] == ["unknown_batch"]


async def test_the_trail_tells_of_them(
    door: Door,
    state: State,
    storage: Storage,
    bus: Bus,
    catalog: Catalog,
    replying: None,
    tmp_path: Path,
) -> None:
    trail = tmp_path / "trail.jsonl"
    await bus.consume(door.serve(an_intake(state, storage, bus, catalog, trail=trail)))
    batch_id = await _open(door)

    await _add(door, batch_id, _requests("a"))
    await _say(door, CLOSE, batch_id)
    await _add(door, batch_id, _requests("b"))

    lines = [json.loads(text) for text in trail.read_text().splitlines()]  # a test's own small file
    assert [(one["act"], one["result"], one.get("object")) for one in lines] == [
        ("batch.created", "done", batch_id),
        ("batch.extended", "done", batch_id),
        ("batch.closed", "done", batch_id),
        ("batch.extended", "refused", None),
    ]
