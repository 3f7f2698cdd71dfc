"""Watching a batch over HTTP: nothing is missed or doubled, with one Redis connection for all."""

import asyncio
import contextlib
import json
import os
import secrets
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from jsonschema import Draft202012Validator
from openai import AsyncStream
from openai.types import Batch
from redis.asyncio import Redis

from gateway.watchers import Watchers
from shared.bus.event_shapes import EVENT_TYPES
from shared.lifecycle import Event, Status
from shared.state import State
from tests.batches import claim, feed, in_progress, in_status, part, validating
from tests.eventually import eventually
from tests.integration.gateway.conftest import Caller, Gateway

#: The variable makes it as many as a machine may have.
WATCHERS = int(os.environ.get("WATCHERS", "1000"))
PATIENCE = 0.03 * WATCHERS


@pytest.fixture
def lane() -> str:
    """Nobody else's."""
    return f"m@{secrets.token_hex(4)}"


@pytest.fixture
async def behind(gateway: Gateway) -> AsyncIterator["Redis[str]"]:
    """The gateway's Redis itself."""
    client: Redis[str] = Redis.from_url(
        gateway.settings.redis_url.get_secret_value(), decode_responses=True
    )
    yield client
    await client.aclose()


async def test_a_watcher_sees_the_state_at_once_then_each_change_and_the_end(
    acme: Caller, gateway_state: State, lane: str
) -> None:
    batch_id = await in_progress(gateway_state, tenant=acme.tenant, slices=1, lane=lane)

    async with _watching(acme, batch_id) as events:
        first = await anext(events)
        await _run(gateway_state, batch_id, lane)
        finalizing = await anext(events)
        await gateway_state.apply(batch_id, Event.OUTPUT_COMMITTED)
        rest = [event async for event in events]

    assert (first["event"], first["data"]["status"]) == ("batch.in_progress", "in_progress")
    assert finalizing["event"] == "batch.finalizing"
    assert finalizing["data"]["request_counts"] == {"total": 10, "completed": 10, "failed": 0}
    assert [event["event"] for event in rest] == ["batch.completed"]
    ids = [int(event["id"]) for event in (first, finalizing, *rest)]
    assert ids == [2, 3, 4]
    assert [event["data"]["sequence"] for event in (first, finalizing, *rest)] == ids


@pytest.mark.parametrize("status", list(Status))
async def test_the_first_event_has_the_name_that_the_bus_gave_the_status(
    status: Status, acme: Caller, gateway_state: State
) -> None:
    batch_id = await in_status(gateway_state, status, tenant=acme.tenant)

    async with _watching(acme, batch_id) as events:
        first = await anext(events)

    assert EVENT_TYPES[first["event"]].status is status
    assert (first["data"]["type"], first["data"]["status"]) == (first["event"], status)


async def test_each_event_is_as_the_openapi_document_says(
    acme: Caller, gateway_state: State, lane: str
) -> None:
    document = (await acme.http.get("/openapi.json")).json()
    shape = {"$ref": "#/components/schemas/WatchedBatch", "components": document["components"]}
    batch_id = await in_progress(gateway_state, tenant=acme.tenant, slices=1, lane=lane)

    async with _watching(acme, batch_id) as events:
        seen = [await anext(events)]
        await _run(gateway_state, batch_id, lane)
        await gateway_state.apply(batch_id, Event.OUTPUT_COMMITTED)
        seen += [event async for event in events]

    for event in seen:
        Draft202012Validator(shape).validate(event["data"])
        assert event["data"]["type"] == event["event"]


async def test_progress_says_how_fast_and_how_long(
    acme: Caller, gateway_state: State, behind: "Redis[str]", lane: str
) -> None:
    batch_id = await in_progress(gateway_state, tenant=acme.tenant, slices=2, lane=lane)
    await behind.hincrby(f"{{batchyard}}:batch:{batch_id}", "in_progress_at", -100)

    async with _watching(acme, batch_id) as events:
        await anext(events)
        await feed(gateway_state, batch_id, lane=lane)
        [one] = await claim(gateway_state, lane=lane)
        await gateway_state.claims.commit(one, part(one))
        progress = await anext(events)

    assert progress["event"] == "batch.progress"
    # 50 tokens of 10 rows in a little more than 100 seconds.
    assert 0.2 < progress["data"]["tokens_per_second"] <= 0.5
    assert 100 <= progress["data"]["remaining_seconds"] < 200
    assert progress["data"]["paused"] is False
    assert progress["data"]["priority"] == 5


async def test_only_what_is_newer_than_the_last_event_id_comes(
    acme: Caller, gateway_state: State, lane: str
) -> None:
    batch_id = await in_progress(gateway_state, tenant=acme.tenant, lane=lane)
    async with _watching(acme, batch_id) as events:
        seen = (await anext(events))["id"]

    async with _watching(acme, batch_id, seen) as events:
        await gateway_state.apply(batch_id, Event.CANCEL_REQUESTED)
        newer = await anext(events)
    async with _watching(acme, batch_id, seen) as events:
        missed = await anext(events)

    assert (newer["event"], int(newer["id"])) == ("batch.cancelling", int(seen) + 1)
    assert missed == newer


@pytest.mark.parametrize("last", ["999", "x", "-1", "²"])
async def test_a_last_event_id_that_is_none_of_the_batch_counts_for_nothing(
    last: str, acme: Caller, gateway_state: State
) -> None:
    batch_id = await validating(gateway_state, tenant=acme.tenant)

    async with _watching(acme, batch_id, last) as events:
        assert (await anext(events))["event"] == "batch.accepted"


async def test_an_ended_batch_is_sent_once_and_then_no_more(
    acme: Caller, gateway_state: State
) -> None:
    batch_id = await validating(gateway_state, tenant=acme.tenant)
    await gateway_state.apply(batch_id, Event.INPUT_REJECTED, {"first_error": "empty"})

    async with _watching(acme, batch_id) as events:
        received = [event async for event in events]
    again = await acme.http.get(
        f"/v1/batches/{batch_id}/events", headers={"last-event-id": received[-1]["id"]}
    )

    assert [event["event"] for event in received] == ["batch.failed"]
    assert received[0]["data"]["first_error"] == "empty"
    assert (again.status_code, again.content) == (204, b"")


async def test_the_last_event_is_never_missed_whenever_the_watcher_comes(
    acme: Caller, gateway_state: State
) -> None:
    batch_ids = [await validating(gateway_state, tenant=acme.tenant) for _ in range(40)]

    async def end(number: int, batch_id: str) -> None:
        # From before the watcher's call to after it.
        await asyncio.sleep(number / 1000)
        await gateway_state.apply(batch_id, Event.INPUT_REJECTED)

    async def last(batch_id: str) -> str:
        async with _watching(acme, batch_id) as events:
            received = [event async for event in events]
        return str(received[-1]["event"])

    found = await asyncio.wait_for(
        asyncio.gather(
            *(last(batch_id) for batch_id in batch_ids),
            *(end(number, batch_id) for number, batch_id in enumerate(batch_ids)),
        ),
        timeout=120,
    )

    assert found[: len(batch_ids)] == ["batch.failed"] * len(batch_ids)


async def test_a_batch_is_read_once_for_all_its_watchers_and_after_its_subscription(
    state: State, redis: "Redis[str]"
) -> None:
    batch_id = await validating(state)
    watchers = Watchers(state, heartbeat_seconds=60)
    streams = [watchers.watch(batch_id) for _ in range(20)]
    said: list[str] = []

    async with redis.monitor() as monitor:
        await asyncio.gather(*(anext(stream) for stream in streams))
        await redis.echo("over")
        while "over" not in (said[-1:] or [""])[0]:
            said.append((await monitor.next_command())["command"])
    await watchers.end()

    # What happens before the subscription is in the record, what happens after it is heard.
    assert [command.split()[0] for command in said if batch_id in command] == [
        "SUBSCRIBE",
        "HGETALL",
    ]


@pytest.mark.timeout(120 + 2 * PATIENCE)
async def test_a_thousand_watchers_are_one_subscription(
    acme: Caller, gateway: Gateway, gateway_state: State, behind: "Redis[str]"
) -> None:
    batch_id = await validating(gateway_state, tenant=acme.tenant)
    streams = []
    # Not all calls at once: each looks its key up.
    for _ in range(WATCHERS // 50):
        some = await asyncio.gather(*(_raw(gateway, acme, batch_id) for _ in range(50)))
        streams += some
        for reader, _ in some:
            await asyncio.wait_for(reader.readuntil(b"event: batch.accepted"), PATIENCE)

    channel = f"{{batchyard}}:watch:{batch_id}"
    assert dict(await behind.pubsub_numsub(channel)) == {channel: 1}
    clients = [one for one in await behind.client_list(_type="pubsub") if one["db"] == "7"]
    assert len(clients) == 1

    await gateway_state.apply(batch_id, Event.INPUT_REJECTED)
    bodies = await asyncio.wait_for(
        asyncio.gather(*(reader.read() for reader, _ in streams)), timeout=PATIENCE
    )
    for _, writer in streams:
        writer.close()
    assert all(b"event: batch.failed" in body for body in bodies)

    async def is_let_go() -> bool:
        return dict(await behind.pubsub_numsub(channel)) == {channel: 0}

    # The next one who watches lets the connection forget what nobody watches any more.
    other = await validating(gateway_state, tenant=acme.tenant)
    async with _watching(acme, other) as events:
        await anext(events)
        await eventually(is_let_go)


async def test_a_slow_reader_gets_the_newest_state_and_nothing_is_kept_for_it(
    state: State,
) -> None:
    batch_id = await validating(state)
    watchers = Watchers(state, heartbeat_seconds=60)
    slow, fast = watchers.watch(batch_id), watchers.watch(batch_id)
    await anext(slow)
    await anext(fast)

    for number in range(50):
        await (state.controls.resume if number % 2 else state.controls.pause)(batch_id)
        # Somebody else keeps up, so each event has surely arrived.
        await anext(fast)

    newest = _parsed((await anext(slow)).decode())
    assert newest["data"]["sequence"] == 51
    await state.apply(batch_id, Event.INPUT_REJECTED)
    assert [_parsed(body.decode())["event"] async for body in slow] == ["batch.failed"]
    await watchers.end()


async def test_events_go_on_after_redis_has_cut_the_connection(
    state: State, redis: "Redis[str]"
) -> None:
    batch_id = await validating(state)
    watchers = Watchers(state, heartbeat_seconds=60)
    stream = watchers.watch(batch_id)
    await anext(stream)

    await redis.client_kill_filter(_type="pubsub")
    await state.controls.pause(batch_id)

    received = _parsed((await asyncio.wait_for(anext(stream), 60)).decode())
    assert (received["data"]["sequence"], received["data"]["paused"]) == (2, True)
    await watchers.end()


async def test_signs_of_life_come_between_events(state: State) -> None:
    batch_id = await validating(state)
    watchers = Watchers(state, heartbeat_seconds=0.05)

    stream = watchers.watch(batch_id, seen=1)

    assert await asyncio.wait_for(anext(stream), 60) == b": ping\n\n"
    await stream.aclose()
    await watchers.end()


async def test_who_hangs_up_is_forgotten(
    acme: Caller, gateway: Gateway, gateway_state: State, behind: "Redis[str]"
) -> None:
    batch_id = await validating(gateway_state, tenant=acme.tenant)
    channel = f"{{batchyard}}:watch:{batch_id}"
    reader, writer = await _raw(gateway, acme, batch_id)
    head = await reader.readuntil(b"\r\n\r\n")
    await reader.readuntil(b"event: batch.accepted")
    assert dict(await behind.pubsub_numsub(channel)) == {channel: 1}

    writer.close()

    async def is_forgotten() -> bool:
        # Subscriptions end when somebody begins another one.
        other = await validating(gateway_state, tenant=acme.tenant)
        async with _watching(acme, other) as events:
            await anext(events)
        return dict(await behind.pubsub_numsub(channel)) == {channel: 0}

    await eventually(is_forgotten)
    assert b"200 OK" in head
    assert b"content-type: text/event-stream" in head
    assert b"cache-control: no-cache" in head


async def test_the_sdk_reads_the_stream(acme: Caller, gateway_state: State) -> None:
    batch_id = await validating(gateway_state, tenant=acme.tenant)
    stream = await acme.openai.get(
        f"/batches/{batch_id}/events", cast_to=Batch, stream=True, stream_cls=AsyncStream[Batch]
    )

    first = await anext(stream)
    # A key `error` in an event would read as a broken stream.
    await gateway_state.apply(batch_id, Event.CANCEL_REQUESTED, {"error_object": "{}"})
    await gateway_state.apply(batch_id, Event.CANCEL_COMMITTED)
    rest = [batch.status async for batch in stream]

    assert (first.id, first.status) == (batch_id, "validating")
    assert rest[-1] == "cancelled"


async def test_another_tenants_batch_cannot_be_watched(
    acme: Caller, globex: Caller, gateway_state: State
) -> None:
    batch_id = await validating(gateway_state, tenant=acme.tenant)

    answer = await globex.http.get(f"/v1/batches/{batch_id}/events")

    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == f"No batch found with id '{batch_id}'."


async def _run(state: State, batch_id: str, lane: str) -> None:
    await feed(state, batch_id, slices=1, lane=lane)
    [only] = await claim(state, lane=lane)
    assert await state.claims.commit(only, part(only)) == "ok"


@contextlib.asynccontextmanager
async def _watching(
    caller: Caller, batch_id: str, last: str | None = None
) -> AsyncIterator[AsyncIterator[dict[str, Any]]]:
    headers = [] if last is None else [(b"last-event-id", last.encode())]
    async with caller.http.stream(
        "GET", f"/v1/batches/{batch_id}/events", headers=headers
    ) as answer:
        assert answer.status_code == 200
        yield _events(answer)


async def _events(answer: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    event = ""
    async for line in answer.aiter_lines():
        if line:
            event += f"{line}\n"
        else:
            if "data:" in event:
                yield _parsed(event)
            event = ""


def _parsed(event: str) -> dict[str, Any]:
    fields = dict(line.split(": ", 1) for line in event.strip().splitlines())
    return {**fields, "data": json.loads(fields["data"])}


async def _raw(
    gateway: Gateway, caller: Caller, batch_id: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection of its own: an HTTP client a watcher would be the test's whole time."""
    url = urlsplit(gateway.url)
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    writer.write(
        f"GET /v1/batches/{batch_id}/events HTTP/1.1\r\nhost: {url.netloc}\r\n"
        f"authorization: Bearer {caller.key}\r\nconnection: close\r\n\r\n".encode()
    )
    return reader, writer
