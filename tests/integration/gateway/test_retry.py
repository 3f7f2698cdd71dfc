"""Running again what failed: the right lines, once, and every reason why they cannot run."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError, ConflictError
from openai.types import Batch

from dispatcher.packing import Packer
from shared.catalog_file import load_catalog
from shared.lifecycle import Event, Status
from shared.state import State
from shared.submission.admission import NewBatchQuota
from tests.integration.dispatcher.conftest import (
    BatchYard,
    Result,
    bad,
    good,
    line,
    lines,
)
from tests.integration.gateway.conftest import Caller
from tests.manifests import inline

ROWS = 9


async def test_the_new_batch_runs_just_the_lines_that_failed(acme: Caller, yard: BatchYard) -> None:
    body = b"\xef\xbb\xbf" + b"\n\n".join(
        line(f"ü-{row}", ascii_only=False, note="x\u2028" * row) for row in range(ROWS)
    )
    source = await _ended(yard, acme, body, lambda row: bad() if row in (0, 4, 8) else good())

    batch = await acme.openai.post(f"/batches/{source}/retry", cast_to=Batch)

    assert batch.status == "validating"
    assert batch.metadata == {"who": "me", "retry_of": source}
    assert (batch.endpoint, batch.completion_window) == ("/v1/chat/completions", "24h")
    content = (await acme.openai.files.content(batch.input_file_id)).content
    assert content == b"".join(
        line(f"ü-{row}", ascii_only=False, note="x\u2028" * row) + b"\n" for row in (0, 4, 8)
    )
    file = await acme.openai.files.retrieve(batch.input_file_id)
    assert (file.purpose, file.bytes) == ("batch", len(content))
    await yard.planner.plan(batch.id)
    await yard.run(batch.id, lambda row: good())
    await yard.finaliser.finish(batch.id)
    done = await acme.openai.batches.retrieve(batch.id)
    assert done.status == "completed"
    results = (await acme.openai.files.content(done.output_file_id or "")).text.splitlines()
    assert [json.loads(result)["custom_id"] for result in results] == ["ü-0", "ü-4", "ü-8"]


async def test_an_input_that_came_by_the_bus_with_others_is_read_alone(
    acme: Caller, yard: BatchYard, catalog: Path
) -> None:
    quota = NewBatchQuota(load_catalog(catalog), 1000, 1000, 1_000_000)
    packer = Packer(yard.state, yard.storage, quota=quota, planner=yard.planner)
    bodies = [lines(rows, user=f"{rows}") for rows in (2, 3, 4)]
    made = [inline(f"m-{len(body)}", body, tenant=acme.tenant) for body in bodies]
    await asyncio.gather(*map(packer.make, made))
    source = made[1].manifest.id
    await yard.run(source, lambda row: good() if row else bad())
    await yard.finaliser.finish(source)
    ended = await acme.openai.batches.retrieve(source)

    content = await acme.openai.files.content(ended.input_file_id)
    retry = await acme.openai.post(f"/batches/{source}/retry", cast_to=Batch)
    again = await acme.openai.batches.create(
        input_file_id=ended.input_file_id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
    )

    assert content.content == bodies[1]
    assert content.response.headers["content-length"] == str(len(bodies[1]))
    retried = (await acme.openai.files.content(retry.input_file_id)).content
    assert retried == bodies[1].splitlines(keepends=True)[0]
    await yard.planner.plan(again.id)
    assert (await yard.state.batches.get(again.id)).number("total") == 3
    assert await yard.slices(again.id) == await yard.slices(source)


async def test_the_same_call_again_is_the_same_batch_and_another_is_another(
    acme: Caller, yard: BatchYard
) -> None:
    source = await _ended(yard, acme, lines(ROWS), lambda row: bad() if row else good())
    path = f"/v1/batches/{source}/retry"

    first = (await acme.http.post(path)).json()
    again = (await acme.http.post(path, json={"rows": "all"})).json()
    # Even when there is nothing left to make it from.
    await acme.openai.files.delete((await acme.openai.batches.retrieve(source)).error_file_id or "")
    later = (await acme.http.post(path)).json()
    other = await acme.http.post(path, json={"idempotency_key": "2"})

    assert first["id"] == again["id"] == later["id"]
    assert other.json()["error"]["code"] == "error_file_gone"
    assert [one.id async for one in acme.openai.batches.list()] == [first["id"], source]


async def test_what_is_asked_for_holds_in_the_new_batch(
    acme: Caller, yard: BatchYard, gateway_state: State
) -> None:
    source = await _ended(yard, acme, lines(ROWS), lambda row: bad())

    answer = await acme.http.post(
        f"/v1/batches/{source}/retry",
        json={"completion_window": "7d", "priority": 8, "metadata": {"k": "v"}},
    )

    batch = answer.json()
    assert batch["completion_window"] == "7d"
    assert batch["expires_at"] == batch["created_at"] + 7 * 86_400
    assert batch["metadata"] == {"k": "v", "retry_of": source}
    assert (await gateway_state.batches.get(batch["id"])).number("priority") == 8


@pytest.mark.parametrize(
    ("rows", "expected"),
    [("all", [1, 3, 4, 5, 6, 7, 8]), ("failed", [1]), ("not_run", [3, 4, 5, 6, 7, 8])],
)
async def test_rows_that_failed_and_rows_that_never_ran_can_be_told_apart(
    rows: str, expected: list[int], acme: Caller, yard: BatchYard
) -> None:
    source = await yard.plan(lines(ROWS), tenant=acme.tenant)
    first, *others = await yard.claim(source)
    await yard.commit(first, [good(), bad(), good()])
    await yard.state.apply(source, Event.CANCEL_REQUESTED)
    for other in others:
        await yard.state.claims.release(other)
    await yard.finaliser.finish(source)

    batch = await acme.openai.post(f"/batches/{source}/retry", cast_to=Batch, body={"rows": rows})

    content = (await acme.openai.files.content(batch.input_file_id)).text
    found = [json.loads(text)["custom_id"] for text in content.splitlines()]
    assert found == [f"row-{row}" for row in expected]


async def test_a_batch_that_failed_as_a_whole_is_run_again_as_a_whole(
    acme: Caller, yard: BatchYard
) -> None:
    file = await acme.openai.files.create(file=("in.jsonl", lines(ROWS)), purpose="batch")
    source = await yard.plan(lines(ROWS), tenant=acme.tenant, input_file_id=file.id)
    await yard.state.apply(source, Event.LANE_FAILED)

    batch = await acme.openai.post(f"/batches/{source}/retry", cast_to=Batch)

    assert batch.input_file_id == file.id
    assert batch.metadata == {"retry_of": source}


async def test_while_a_batch_runs_there_is_nothing_to_retry(acme: Caller, yard: BatchYard) -> None:
    source = await yard.plan(lines(ROWS), tenant=acme.tenant)

    with pytest.raises(ConflictError, match="status 'in_progress': wait for its end") as refused:
        await acme.openai.post(f"/batches/{source}/retry", cast_to=Batch)

    assert refused.value.response.headers["x-should-retry"] == "false"


async def test_where_nothing_failed_nothing_is_retried(acme: Caller, yard: BatchYard) -> None:
    whole = await _ended(yard, acme, lines(ROWS), lambda row: good())
    refused = await yard.plan(b"no json", tenant=acme.tenant)
    failed = await _ended(yard, acme, lines(ROWS), lambda row: bad())

    for batch_id, body, why in (
        (whole, {}, "every request of it succeeded"),
        (refused, {}, "its input was refused"),
        (failed, {"rows": "not_run"}, "no request of it ended so"),
    ):
        with pytest.raises(BadRequestError, match=why) as raised:
            await acme.openai.post(f"/batches/{batch_id}/retry", cast_to=Batch, body=body)
        assert (raised.value.param, raised.value.code) == ("batch_id", "nothing_to_retry")
    # Nothing is left behind, either.
    assert [file.id async for file in acme.openai.files.list(purpose="batch")] == []


async def test_without_its_input_a_batch_cannot_be_retried(acme: Caller, yard: BatchYard) -> None:
    source = await _ended(yard, acme, lines(ROWS), lambda row: bad())
    record = await yard.state.batches.get(source)
    await yard.storage.remove([record.fields["key"]])

    with pytest.raises(BadRequestError) as refused:
        await acme.openai.post(f"/batches/{source}/retry", cast_to=Batch)

    assert refused.value.code == "input_file_gone"
    assert record.fields["input_file_id"] in str(refused.value)


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"rows": "some"}, "rows", "Supported values are: 'all', 'failed', 'not_run'."),
        ({"completion_window": "1h"}, "completion_window", "Supported values are: '24h', '7d'."),
        (
            {"metadata": {str(number): "" for number in range(16)}},
            "metadata",
            "'retry_of' is added to them, so give at most 15 others.",
        ),
    ],
)
async def test_a_request_that_cannot_be_met_is_refused_with_its_reason(
    body: dict[str, Any], param: str, message: str, acme: Caller, yard: BatchYard
) -> None:
    source = await _ended(yard, acme, lines(ROWS), lambda row: bad())

    answer = await acme.http.post(f"/v1/batches/{source}/retry", json=body)

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert message in answer.json()["error"]["message"]


async def test_nobody_retries_anothers_batch(acme: Caller, globex: Caller, yard: BatchYard) -> None:
    source = await _ended(yard, acme, lines(ROWS), lambda row: bad())

    answer = await globex.http.post(f"/v1/batches/{source}/retry")

    assert answer.status_code == 404


async def _ended(yard: BatchYard, caller: Caller, body: bytes, result: Any) -> str:
    batch_id = await yard.plan(body, tenant=caller.tenant, metadata='{"who": "me"}')

    def of(row: int) -> Result:
        given: Result = result(row)
        return given

    await yard.run(batch_id, of)
    await yard.finaliser.finish(batch_id)
    assert (await yard.state.batches.get(batch_id)).status is Status.COMPLETED
    return batch_id
