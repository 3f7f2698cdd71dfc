"""What operators set for tenants holds at a running gateway within a second or two."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from gateway.open_streams import OpenStreams
from shared.errors import LimitError
from shared.ledger.keys import add_key, change_key
from shared.ledger.tenants import change_tenant
from shared.lifecycle import Status
from shared.scopes import Scope
from shared.state import State, Stream
from shared.storage import Storage
from shared.tenants import EVERY_TENANT
from tests.batches import in_progress, in_status
from tests.eventually import eventually
from tests.integration.gateway.conftest import Caller, Gateway

LINE = b'{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"model":"tiny"}}\n'


@pytest.fixture
async def set_(
    acme: Caller, gateway_state: State, bucket: Storage
) -> AsyncIterator[Callable[..., Any]]:
    """Sets something for a tenant, and waits until the gateway says so."""
    of_all: set[str] = set()

    async def change(tenant: str = acme.tenant, **changes: Any) -> None:
        if tenant == EVERY_TENANT:
            of_all.update(changes)
        await change_tenant(gateway_state, bucket, tenant, changes)
        await eventually(lambda: _holds(acme, changes))

    yield change
    if of_all:
        await change_tenant(gateway_state, bucket, EVERY_TENANT, {}, tuple(of_all))


async def _holds(caller: Caller, changes: dict[str, Any]) -> bool:
    found = (await caller.http.get("/v1/limits")).json()
    # What a tenant may use is shown as far as somebody serves it.
    return all(
        set(found[name]) <= set(value) if name == "models" else _value(found[name]) == value
        for name, value in changes.items()
    )


def _value(shown: Any) -> Any:
    if isinstance(shown, list) and shown and isinstance(shown[0], dict):
        return shown[0]["limit"]
    return shown["limit"] if isinstance(shown, dict) else shown


async def test_a_tenant_sees_its_limits_with_what_is_used(
    acme: Caller, gateway: Gateway, set_: Callable[..., Any]
) -> None:
    # Few, so that a call is not free again before it is shown.
    await set_(file_requests_per_minute=2, batches_per_hour=20)
    file = await acme.openai.files.create(file=LINE, purpose="batch")
    await acme.openai.batches.create(
        input_file_id=file.id, endpoint="/v1/completions", completion_window="24h"
    )

    found = (await acme.http.get("/v1/limits")).json()

    settings = gateway.settings
    assert (found["object"], found["tenant"], found["weight"]) == ("limits", acme.tenant, 1.0)
    assert found["models"] == ["tiny", "ears", "meta-llama/Llama-3.1-8B", "my-adapter"]
    assert found["stored_bytes"] == {"limit": settings.max_stored_bytes, "used": len(LINE)}
    assert found["batches_per_hour"] == {"limit": 20, "used": 1}
    assert found["requests_per_minute"]["limit"] == 100_000
    assert found["file_requests_per_minute"] == {"limit": 2, "used": 1}
    assert found["event_streams"] == {"limit": settings.max_event_streams, "used": 0}
    assert found["kept_batches"] == {"limit": settings.max_kept_batches, "used": 1}
    assert found["downloads"] == {"limit": settings.max_downloads, "used": 0}
    assert found["engine_deaths_per_day"] == {"limit": 200, "used": 0}
    assert found["webhook_endpoints"] == {"limit": 10, "used": 0}
    assert found["custom_id_characters"] == 512
    # An adapter's tokens count for its model.
    assert [one["model"] for one in found["enqueued_tokens"]] == found["models"][:-1]


async def test_what_is_set_for_a_tenant_goes_before_what_is_set_for_all(
    acme: Caller, globex: Caller, set_: Callable[..., Any]
) -> None:
    await set_(EVERY_TENANT, batches_per_hour=7, event_streams=3)
    await set_(batches_per_hour=9)

    mine = (await acme.http.get("/v1/limits")).json()
    others = (await globex.http.get("/v1/limits")).json()

    assert (mine["batches_per_hour"]["limit"], mine["event_streams"]["limit"]) == (9, 3)
    assert (others["batches_per_hour"]["limit"], others["event_streams"]["limit"]) == (7, 3)


async def test_rates_that_are_set_hold_for_the_next_calls(
    acme: Caller, globex: Caller, set_: Callable[..., Any]
) -> None:
    await set_(requests_per_minute=9999, file_requests_per_minute=2)

    files = [await acme.http.get("/v1/files") for _ in range(3)]
    others = [await globex.http.get("/v1/files") for _ in range(3)]

    assert [answer.status_code for answer in files] == [200, 200, 429]
    assert files[0].headers["x-ratelimit-limit-requests"] == "2"
    assert "Limit 2, Used 2." in files[-1].json()["error"]["message"]
    assert [answer.status_code for answer in others] == [200] * 3


async def test_a_model_that_a_tenant_may_not_use_does_not_exist_for_it(
    acme: Caller, globex: Caller, set_: Callable[..., Any]
) -> None:
    await set_(models=("tiny", "nobody-serves-this"))

    listed = [model.id async for model in acme.openai.models.list()]
    hidden = await acme.http.get("/v1/models/my-adapter")
    unknown = await acme.http.get("/v1/models/my-adaptor")
    dry = await _dry_run(acme, "my-adapter")

    assert listed == ["tiny"]
    assert hidden.status_code == 404
    assert hidden.json()["error"]["code"] == "model_not_found"
    # Nothing tells it from a model that there is not.
    assert hidden.text.replace("my-adapter", "") == unknown.text.replace("my-adaptor", "")
    assert [problem["code"] for problem in dry["errors"]["data"]] == ["model_not_found"]
    assert (await _dry_run(acme, "tiny"))["errors"] is None
    assert (await _dry_run(globex, "my-adapter"))["errors"] is None


async def test_a_custom_id_that_is_too_long_is_refused_by_its_line(
    acme: Caller, set_: Callable[..., Any]
) -> None:
    await set_(custom_id_characters=3)

    long = await _dry_run(acme, "tiny", custom_id="äöüß")
    short = await _dry_run(acme, "tiny", custom_id="äöü")

    [problem] = long["errors"]["data"]
    assert (problem["code"], problem["line"], problem["param"]) == (
        "string_above_max_length",
        1,
        "custom_id",
    )
    assert "maximum length 3, but got a string with length 4" in problem["message"]
    assert short["errors"] is None


async def test_a_file_is_refused_that_a_tenant_has_no_room_for(
    acme: Caller, set_: Callable[..., Any], bucket: Storage
) -> None:
    await set_(stored_bytes=2 * len(LINE))
    kept = [(await acme.openai.files.create(file=LINE, purpose="batch")).id]

    refused = await acme.http.post("/v1/files", **_form(LINE + LINE))
    kept.append((await acme.openai.files.create(file=LINE, purpose="batch")).id)
    full = await acme.http.post("/v1/files", **_form(LINE))
    batch = await acme.http.post("/v1/batches", json=_params(kept[0]))
    await acme.openai.files.delete(kept.pop())
    after = await acme.http.post("/v1/files", **_form(LINE))
    room_again = await acme.http.post("/v1/batches", json=_params(kept[0]))

    assert [answer.status_code for answer in (refused, full, batch, after)] == [429, 429, 429, 200]
    # It is full again.
    assert room_again.status_code == 429
    error = refused.json()["error"]
    assert (error["code"], error["type"]) == ("storage_limit_exceeded", "stored_bytes")
    assert f"Limit: {2 * len(LINE)} bytes" in error["message"]
    assert f"Used: {len(LINE)}." in error["message"]
    assert "delete files" in error["message"]
    assert refused.headers["x-should-retry"] == "false"
    # Two files with their records, and the object of a deleted one, which is swept later.
    assert len(await bucket.keys(f"files/{acme.tenant}/")) == 5


async def test_a_tenant_with_as_many_batches_as_it_may_keep_creates_no_more(
    acme: Caller, globex: Caller, set_: Callable[..., Any], gateway_state: State
) -> None:
    await set_(kept_batches=2)
    first, _ = [await in_status(gateway_state, Status.FAILED, tenant=acme.tenant) for _ in range(2)]
    params = _params((await acme.openai.files.create(file=LINE, purpose="batch")).id)
    theirs = _params((await globex.openai.files.create(file=LINE, purpose="batch")).id)

    refused = await acme.http.post("/v1/batches", json=params)
    used = (await acme.http.get("/v1/limits")).json()["kept_batches"]
    others = await globex.http.post("/v1/batches", json=theirs)
    await gateway_state.batches.forget([first])
    room_again = await acme.http.post("/v1/batches", json=params)

    error = refused.json()["error"]
    assert (refused.status_code, used) == (429, {"limit": 2, "used": 2})
    assert error["code"] == "kept_batch_limit_exceeded"
    assert "Limit: 2 batches that are kept. Used: 2." in error["message"]
    assert (others.status_code, room_again.status_code) == (200, 200)


async def test_of_uploads_at_once_as_many_are_kept_as_there_is_room_for(
    acme: Caller, set_: Callable[..., Any], gateway_state: State
) -> None:
    await set_(stored_bytes=3 * len(LINE))

    answers = await asyncio.gather(*(acme.http.post("/v1/files", **_form(LINE)) for _ in range(8)))

    assert sorted(answer.status_code for answer in answers) == [200] * 3 + [429] * 5
    assert await gateway_state.files.stored_bytes(acme.tenant) == 3 * len(LINE)


async def test_parts_of_uploads_count_until_they_are_a_file_or_are_given_up(
    acme: Caller, set_: Callable[..., Any], gateway_state: State
) -> None:
    await set_(stored_bytes=100)

    async def upload(size: int) -> httpx.Response:
        body = {"filename": "a.jsonl", "purpose": "batch", "bytes": size, "mime_type": "text/jsonl"}
        return await acme.http.post("/v1/uploads", json=body)

    async def part(upload_id: str, size: int) -> httpx.Response:
        data = {"data": ("part", b"x" * size)}
        return await acme.http.post(f"/v1/uploads/{upload_id}/parts", files=data)

    too_large = await upload(101)
    first, second = (await upload(60)).json()["id"], (await upload(60)).json()["id"]
    part_id = (await part(first, 60)).json()["id"]
    over = await part(second, 60)
    whole = await acme.http.post(f"/v1/uploads/{first}/complete", json={"part_ids": [part_id]})
    stored = await gateway_state.files.stored_bytes(acme.tenant)
    assert (await part(second, 40)).status_code == 200
    full = await gateway_state.files.stored_bytes(acme.tenant)
    await acme.http.post(f"/v1/uploads/{second}/cancel")

    assert (too_large.status_code, over.status_code, whole.status_code) == (429, 429, 200)
    assert over.json()["error"]["code"] == "storage_limit_exceeded"
    assert (stored, full) == (60, 100)
    assert await gateway_state.files.stored_bytes(acme.tenant) == 60


async def test_event_streams_are_refused_above_their_limit_and_counted_until_they_end(
    acme: Caller, globex: Caller, set_: Callable[..., Any], gateway_state: State
) -> None:
    await set_(event_streams=2)
    batch_id = await in_progress(gateway_state, tenant=acme.tenant, slices=1)
    others = await in_progress(gateway_state, tenant=globex.tenant, slices=1)
    path = f"/v1/batches/{batch_id}/events"

    reading = []
    async with contextlib.AsyncExitStack() as streams:
        for caller, batch in ((acme, batch_id), (acme, batch_id), (globex, others)):
            stream = caller.http.stream("GET", f"/v1/batches/{batch}/events")
            answer = await streams.enter_async_context(stream)
            # A reader that nobody keeps would close the stream.
            reading.append(answer.aiter_lines())
            await anext(reading[-1])
            assert answer.status_code == 200
        refused = await acme.http.get(path)
        used = (await acme.http.get("/v1/limits")).json()["event_streams"]

    error = refused.json()["error"]
    assert refused.status_code == 429
    assert (error["code"], used) == ("event_stream_limit_exceeded", {"limit": 2, "used": 2})
    assert "Limit: 2 open event streams. Used: 2. Please close a stream" in error["message"]
    await eventually(lambda: _has_room(acme, path))


async def _has_room(caller: Caller, path: str) -> bool:
    async with caller.http.stream("GET", path) as answer:
        return answer.status_code == 200


async def test_streams_of_a_gateway_that_died_count_only_for_a_while(state: State) -> None:
    for number in range(3):
        assert await state.streams.open(Stream("acme", f"{number}"), limit=3, seconds=1) is None

    full = await state.streams.open(Stream("acme", "one more"), limit=3, seconds=60)
    await state.streams.renew([Stream("acme", "0")], seconds=60)

    async def opens() -> bool:
        """With a limit of two: both streams that nobody renewed are gone."""
        streams = state.streams
        return await streams.open(Stream("acme", "one more"), limit=2, seconds=60) is None

    await eventually(opens)
    assert full == 3
    assert await state.streams.open(Stream("acme", "another"), limit=2, seconds=60) == 2


async def test_a_stream_whose_opening_is_repeated_counts_once(state: State) -> None:
    """The client repeats a script whose answer was lost."""
    for _ in range(2):
        assert await state.streams.open(Stream("acme", "a"), limit=1, seconds=60) is None

    assert await state.streams.open(Stream("acme", "b"), limit=1, seconds=60) == 1


async def test_a_stream_counts_again_after_redis_has_forgotten_it(state: State) -> None:
    await state.streams.renew([Stream("acme", "a")], seconds=60)

    assert await state.streams.open(Stream("acme", "b"), limit=1, seconds=60) == 1
    await state.streams.close([Stream("acme", "a")])
    assert await state.streams.open(Stream("acme", "b"), limit=1, seconds=60) is None


async def test_thousands_of_streams_are_renewed_in_few_commands(
    state: State, redis: "Redis[str]"
) -> None:
    """A script's own commands hold up Redis as others do."""
    streams = [Stream(tenant, f"{one}") for one in range(3000) for tenant in ("acme", "other")]
    await state.streams.renew(streams[:2], seconds=60)
    before = (await redis.info("stats"))["total_commands_processed"]

    await state.streams.renew(streams, seconds=60)

    after = (await redis.info("stats"))["total_commands_processed"]
    assert after - before < 50
    for tenant in ("acme", "other"):
        assert await state.streams.open(Stream(tenant, "new"), limit=3000, seconds=60) == 3000
        assert await state.streams.open(Stream(tenant, "new"), limit=3001, seconds=60) is None


async def test_a_stream_whose_reader_is_cancelled_is_counted_no_longer(state: State) -> None:
    streams = OpenStreams(state.streams, "event_streams")
    place = await streams.take("acme", limit=1)

    async def frames() -> AsyncIterator[bytes]:
        while True:
            yield b"x"
            await asyncio.sleep(3600)

    async def read() -> None:
        async for _ in streams.counted(place, frames()):  # type: ignore[arg-type]  # a generator
            begun.set()

    begun = asyncio.Event()
    reading = asyncio.create_task(read())
    await begun.wait()
    with pytest.raises(LimitError, match="Limit: 1 "):
        await streams.take("acme", limit=1)
    reading.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reading

    await streams.end()
    assert await state.streams.open(place, limit=1, seconds=60) is None


async def test_a_stream_that_ends_while_it_is_renewed_is_counted_no_longer(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.open_streams._RENEW_SECONDS", 0.01)
    streams = OpenStreams(state.streams, "event_streams")
    place = await streams.take("acme", limit=1)
    renew, begun, closed, ended = state.streams.renew, *(asyncio.Event() for _ in range(3))

    async def renew_late(renewed: Collection[Stream], *, seconds: float) -> None:
        renewed = list(renewed)
        begun.set()
        await closed.wait()
        await renew(renewed, seconds=seconds)
        ended.set()

    monkeypatch.setattr(state.streams, "renew", renew_late)
    with streams.counting(place):
        await begun.wait()
    closing = streams._closing  # noqa: SLF001  # nothing else tells when it has ended
    assert closing is not None
    await closing
    closed.set()
    await ended.wait()

    async def is_free() -> bool:
        return await state.streams.open(Stream("acme", "new"), limit=1, seconds=60) is None

    await eventually(is_free, timeout=10)
    await streams.end()


async def test_webhook_endpoints_have_the_limit_that_is_set(
    acme: Caller, set_: Callable[..., Any]
) -> None:
    await set_(webhook_endpoints=1)
    body = {"name": "a", "url": "https://example.com/a", "event_types": ["batch.completed"]}

    answers = [await acme.http.post("/v1/webhook_endpoints", json=body) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [200, 400]
    assert "You have 1 webhook endpoint" in answers[1].json()["error"]["message"]


@pytest.mark.parametrize(
    ("scopes", "statuses"),
    [
        ((Scope.READ,), {"get": 200, "file": 403, "batch": 403, "hook": 403, "delete": 403}),
        ((Scope.SUBMIT,), {"get": 403, "file": 200, "batch": 400, "hook": 403, "delete": 404}),
        ((Scope.ADMIN,), {"get": 403, "file": 403, "batch": 403, "hook": 200, "delete": 403}),
    ],
)
async def test_a_key_may_do_what_its_scopes_say(
    scopes: tuple[Scope, ...],
    statuses: dict[str, int],
    acme: Caller,
    gateway_state: State,
    bucket: Storage,
) -> None:
    key = f"sk-{acme.tenant}-few"
    await add_key(gateway_state, bucket, acme.tenant, key, scopes=scopes)
    hook = {"name": "a", "url": "https://example.com/a", "event_types": ["batch.completed"]}
    headers = {"authorization": f"Bearer {key}"}
    http = acme.http

    answers = {
        "get": await http.get("/v1/batches", headers=headers),
        "file": await http.post("/v1/files", headers=headers, **_form(LINE)),
        "batch": await http.post("/v1/batches", headers=headers, json=_params("file-none")),
        "hook": await http.post("/v1/webhook_endpoints", headers=headers, json=hook),
        "delete": await http.delete("/v1/files/file-none", headers=headers),
    }

    assert {name: answer.status_code for name, answer in answers.items()} == statuses
    refused = [answer.json()["error"] for answer in answers.values() if answer.status_code == 403]
    assert {(error["type"], error["code"]) for error in refused} == {
        ("invalid_request_error", "missing_scope")
    }
    assert all("Missing scopes: " in error["message"] for error in refused)
    assert all(f"has: {scopes[0]}." in error["message"] for error in refused)


async def test_an_expired_key_is_refused_and_may_be_extended(
    acme: Caller, gateway_state: State, bucket: Storage
) -> None:
    key = f"sk-{acme.tenant}-of-last-year"
    await add_key(gateway_state, bucket, acme.tenant, key, expires_at=1_700_000_000)
    key_id = (await gateway_state.keys.get(key)).id
    headers = {"authorization": f"Bearer {key}"}

    refused = await acme.http.get("/v1/models", headers=headers)
    await change_key(gateway_state, bucket, key_id, expires_at=None, scopes=(Scope.READ,))
    after = await acme.http.get("/v1/models", headers=headers)

    error = refused.json()["error"]
    assert (refused.status_code, error["code"]) == (401, "expired_api_key")
    assert "expired at 2023-11-14T22:13:20Z" in error["message"]
    assert key not in refused.text
    assert after.status_code == 200
    kept = json.loads(await bucket.get(f"keys/{key_id}.json"))
    assert (kept["expires_at"], kept["scopes"]) == (None, ["read"])


def _form(content: bytes) -> dict[str, Any]:
    return {"files": {"file": ("in.jsonl", content)}, "data": {"purpose": "batch"}}


def _params(file_id: str) -> dict[str, str]:
    return {
        "input_file_id": file_id,
        "endpoint": "/v1/completions",
        "completion_window": "24h",
    }


async def _dry_run(caller: Caller, model: str, custom_id: str = "a") -> dict[str, Any]:
    line = {
        "custom_id": custom_id,
        "method": "POST",
        "url": "/v1/completions",
        "body": {"model": model, "prompt": "x"},
    }
    file = await caller.openai.files.create(
        file=json.dumps(line, ensure_ascii=False).encode(), purpose="batch"
    )
    answer = await caller.http.post("/v1/batches", json={**_params(file.id), "dry_run": True})
    found: dict[str, Any] = answer.json()
    return found
