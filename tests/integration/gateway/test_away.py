"""Over HTTP, a batch that has left Redis for S3 is like any other ended batch."""

import asyncio
from typing import Any

import pytest

from dispatcher.leaving import let_leave
from tests.integration.dispatcher.conftest import BatchYard, bad, good, line
from tests.integration.gateway.conftest import Caller, Gateway

#: Of an answer's headers and body, what may differ from call to call.
_ROW = b"\n".join(line(f"row-{number}") for number in range(3)) + b"\n"
_KEY = "away-1"


@pytest.fixture
async def ended(acme: Caller, yard: BatchYard) -> str:
    """A batch with one failed row, which was created over HTTP."""
    file = await acme.openai.files.create(file=_ROW, purpose="batch")
    batch_id: str = (await acme.http.post("/v1/batches", **_creation(file.id))).json()["id"]
    await yard.planner.plan(batch_id)
    await yard.run(batch_id, lambda row: bad() if row == 1 else good())
    await yard.finaliser.finish(batch_id)
    return batch_id


async def test_what_can_be_read_is_as_before(acme: Caller, yard: BatchYard, ended: str) -> None:
    paths = [
        f"/v1/batches/{ended}",
        f"/v1/batches/{ended}/explain",
        f"/v1/batches/{ended}/results",
        "/v1/batches",
        "/v1/batches?updated_after=1",
        f"/v1/batches?idempotency_key={_KEY}",
    ]
    before = [await _get(acme, path) for path in paths]

    await _leave(yard, ended)

    after = [await _get(acme, path) for path in paths]
    assert after == before
    assert all(status == 200 for status, _ in after)
    content = await acme.openai.files.content(before[0][1]["output_file_id"])
    assert content.text.count("\n") == 2
    assert not await yard.state._redis.exists(f"{yard.state._namespace}batch:{ended}")  # noqa: SLF001  # behind State's back


async def test_a_page_goes_on_after_a_batch_that_is_away(
    acme: Caller, yard: BatchYard, ended: str
) -> None:
    file_id = (await acme.openai.batches.retrieve(ended)).input_file_id
    await _leave(yard, ended)
    newer = [
        (await acme.http.post("/v1/batches", **_creation(file_id, key=f"newer-{n}"))).json()["id"]
        for n in range(2)
    ]

    listed = [one.id async for one in acme.openai.batches.list(limit=1)]

    assert listed == [*reversed(newer), ended]


async def test_the_same_key_finds_it_and_another_request_is_a_conflict(
    acme: Caller, yard: BatchYard, ended: str
) -> None:
    batch = await acme.openai.batches.retrieve(ended)

    for metadata, status in ((None, 200), ({"other": "1"}, 409)):
        await _leave(yard, ended)
        creation = _creation(batch.input_file_id, metadata=metadata)
        again = await acme.http.post("/v1/batches", **creation)
        assert again.status_code == status
        assert status != 200 or again.json() == batch.to_dict()


async def test_what_an_ended_batch_allows_is_allowed_and_nothing_else(
    acme: Caller, globex: Caller, yard: BatchYard, ended: str
) -> None:
    await _leave(yard, ended)
    cancelled = await acme.http.post(f"/v1/batches/{ended}/cancel")
    await _leave(yard, ended)
    changed = await acme.http.post(f"/v1/batches/{ended}", json={"metadata": {"who": "you"}})
    await _leave(yard, ended)
    read = await acme.http.get(f"/v1/batches/{ended}")
    retried = await acme.http.post(f"/v1/batches/{ended}/retry")
    theirs = await globex.http.get(f"/v1/batches/{ended}")
    nobodys = await acme.http.get(f"/v1/batches/batch_{'0' * 32}")

    assert cancelled.status_code == 409
    assert "Cannot cancel a batch with status 'completed'." in cancelled.text
    assert changed.json()["metadata"] == {"who": "you"} == read.json()["metadata"]
    assert retried.json()["metadata"]["retry_of"] == ended
    assert (theirs.status_code, nobodys.status_code) == (404, 404)


async def test_deleted_results_of_a_batch_that_is_away_stay_deleted(
    acme: Caller, yard: BatchYard, ended: str
) -> None:
    await _leave(yard, ended)
    file_id = (await acme.openai.batches.retrieve(ended)).output_file_id

    assert (await acme.http.delete(f"/v1/files/{file_id}")).json()["deleted"]

    assert (await acme.http.get(f"/v1/files/{file_id}")).status_code == 404
    assert (await acme.openai.batches.retrieve(ended)).output_file_id == file_id


async def test_it_is_found_by_all_who_ask_while_it_leaves(
    acme: Caller, gateway: Gateway, yard: BatchYard, ended: str
) -> None:
    left = asyncio.Event()

    async def ask() -> set[int]:
        statuses = set[int]()
        while not left.is_set():
            statuses.add((await acme.http.get(f"/v1/batches/{ended}")).status_code)
        return statuses

    async def leave() -> None:
        for _ in range(5):
            await _leave(yard, ended)
            await yard.state.away.bring_back([ended])
        left.set()

    statuses, _ = await asyncio.gather(ask(), leave())
    assert statuses == {200}


async def _leave(yard: BatchYard, batch_id: str) -> None:
    await let_leave(yard.state, yard.storage, seconds=-1)
    assert batch_id in await yard.state.away.among([batch_id])


async def _get(caller: Caller, path: str) -> tuple[int, Any]:
    answer = await caller.http.get(path)
    is_json = "json" in answer.headers["content-type"] and "results" not in path
    return answer.status_code, answer.json() if is_json else answer.text


def _creation(file_id: str, *, key: str = _KEY, **changes: Any) -> dict[str, Any]:
    body = {"input_file_id": file_id, "endpoint": "/v1/chat/completions", **changes}
    body["completion_window"] = "24h"
    return {"json": body, "headers": {"Idempotency-Key": key}}
