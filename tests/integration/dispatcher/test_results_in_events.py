import json
from contextlib import closing
from typing import Any

import httpx
import pytest

from shared.bus import event_messages
from shared.bus.connection import Bus
from shared.bus.event_messages import EventMessages
from shared.bus.relay import Relay
from shared.errors import TransientError
from shared.state import State
from shared.state.outbox import Entry
from shared.storage import Storage
from tests.batches import in_progress
from tests.integration.dispatcher.conftest import BatchYard, Result, bad, good, lines


async def test_small_results_travel_in_the_last_event_where_they_are_asked_for(
    yard: BatchYard,
) -> None:
    batch_id = await _ended(yard, deliver_results=1)
    shape = (await yard.state.batches.get(batch_id)).to_openai()
    messages = EventMessages(storage=yard.storage, content_bytes=100_000)

    *before, last = [await _data(messages, entry) for entry in await _events(yard, batch_id)]

    assert last["output"]["content"].encode() == await yard.content(shape.output_file_id)
    assert last["error"]["content"].encode() == await yard.content(shape.error_file_id)
    assert last["output"]["content"].count("\n") == 3
    assert "content" not in json.dumps(before)


@pytest.mark.parametrize(("params", "room"), [({}, 0), ({"deliver_results": 1}, -1)])
async def test_results_do_not_travel_unasked_or_too_large(
    params: dict[str, int], room: int, yard: BatchYard
) -> None:
    batch_id = await _ended(yard, **params)
    last = (await _events(yard, batch_id))[-1]
    objects = [json.loads(last.snapshot()[f"{kind}_object"]) for kind in ("output", "error")]
    size = sum(one["size"] for one in objects)

    data = await _data(EventMessages(storage=yard.storage, content_bytes=size + room), last)

    # The event names their location anyway.
    assert [data["output"], data["error"]] == objects


async def test_results_of_just_the_allowed_size_travel(yard: BatchYard) -> None:
    batch_id = await _ended(yard, deliver_results=1)
    last = (await _events(yard, batch_id))[-1]
    size = sum(
        json.loads(last.snapshot()[f"{kind}_object"])["size"] for kind in ("output", "error")
    )

    data = await _data(EventMessages(storage=yard.storage, content_bytes=size), last)

    assert "content" in data["output"]


async def test_deleted_results_are_left_out(yard: BatchYard) -> None:
    batch_id = await _ended(yard, deliver_results=1)
    last = (await _events(yard, batch_id))[-1]
    await yard.storage.remove([json.loads(last.snapshot()["output_object"])["key"]])

    data = await _data(EventMessages(storage=yard.storage, content_bytes=100_000), last)

    assert "content" not in data["output"] | data["error"]


async def test_while_s3_is_silent_only_the_events_that_need_it_wait(
    yard: BatchYard, bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_messages, "_PATIENCE_SECONDS", 0.2)
    await _ended(yard, deliver_results=1)
    other = await in_progress(yard.state)
    with closing(Storage("http://127.0.0.1:9", "key", "secret", "batchyard")) as silent:
        relay = _relay(yard.state, bus, EventMessages(storage=silent, content_bytes=100_000))
        with pytest.raises(TransientError):
            await relay.relay_some(wait_seconds=0)
        left = await yard.state.outbox.read("events", limit=99, wait_seconds=0)

    await _relay(
        yard.state, bus, EventMessages(storage=yard.storage, content_bytes=100_000)
    ).relay_some(wait_seconds=0)

    assert [entry.fields["type"] for entry in left] == ["batch.completed"]
    assert other not in [entry.snapshot()["id"] for entry in left]
    assert await yard.state.outbox.length("events") == 0


async def test_a_url_in_the_last_event_reads_the_results_without_a_key(yard: BatchYard) -> None:
    batch_id = await _ended(yard)
    last = (await _events(yard, batch_id))[-1]
    messages = EventMessages(signer=yard.storage, url_seconds=900)

    data = await _data(messages, last)
    again = await _data(messages, last)

    shape = (await yard.state.batches.get(batch_id)).to_openai()
    async with httpx.AsyncClient() as client:
        for kind, file_id in (("output", shape.output_file_id), ("error", shape.error_file_id)):
            answer = await client.get(data[kind]["url"])
            assert answer.content == await yard.content(file_id)
        forged = await client.get(data["output"]["url"].replace("Expires=900", "Expires=901"))
        bare = await client.get(data["output"]["url"].partition("?")[0])
    assert again == data
    assert (forged.status_code, bare.status_code) == (403, 403)


def _mixed(row: int) -> Result:
    return bad() if row == 1 else good()


async def _ended(yard: BatchYard, **params: int) -> str:
    """A completed batch with three results and an error."""
    batch_id = await yard.plan(lines(4), **params)
    await yard.run(batch_id, _mixed)
    await yard.finaliser.finish(batch_id)
    return batch_id


async def _events(yard: BatchYard, batch_id: str) -> list[Entry]:
    [history] = await yard.state.events.history([batch_id])
    assert history[-1].fields["type"] == "batch.completed"
    return history


async def _data(messages: EventMessages, entry: Entry) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((await messages.of(entry)).body)["data"]
    return data


def _relay(state: State, bus: Bus, messages: EventMessages) -> Relay:
    return Relay(state, bus, "events", holder="a", service_user="x", messages=messages)
