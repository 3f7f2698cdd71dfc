"""Results before a batch's end and after it: the same lines at the same offsets."""

import json
import random
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import BadRequestError
from openai._legacy_response import HttpxBinaryResponseContent
from redis.asyncio import Redis

from gateway.result_lines import Order, ResultLines
from shared import ids
from shared.catalog_file import load_catalog
from shared.lifecycle import Event, Status
from shared.slices import Claim
from shared.state import State
from tests.batches import validating
from tests.integration.dispatcher.conftest import (
    BatchYard,
    Result,
    a_planner,
    bad,
    good,
    line,
    lines,
    run_slice,
)
from tests.integration.gateway.conftest import Caller, Gateway

ROWS = 9


async def test_in_input_order_one_reads_up_to_the_first_row_without_a_result(
    acme: Caller, yard: BatchYard
) -> None:
    batch_id = await yard.plan(lines(ROWS), tenant=acme.tenant)
    first, second, third = await yard.claim(batch_id)

    nothing = await _read(acme, batch_id)
    await yard.commit(second, [good()] * 3)
    still_nothing = await _read(acme, batch_id)
    await yard.commit(first, [bad(), good(), bad()])
    six = await _read(acme, batch_id)
    two = await _read(acme, batch_id, offset=2, limit=2)
    await yard.commit(third, [good()] * 3)
    await yard.finaliser.finish(batch_id)
    await _sweep(yard, batch_id)
    rest = await _read(acme, batch_id, offset=6)

    for answer in (nothing, still_nothing):
        assert (answer.content, _head(answer)) == (b"", ("false", 0, 9))
    assert _ids(six) == [f"row-{row}" for row in range(6)]
    assert _head(six) == ("false", 6, 3)
    assert (_ids(two), _head(two)) == (["row-2", "row-3"], ("false", 4, 5))
    assert (_ids(rest), _head(rest)) == (["row-6", "row-7", "row-8"], ("true", 9, 0))
    await _holds_the_files(yard, batch_id, six.content + rest.content)
    assert rest.headers["content-type"] == "application/x-ndjson"


async def test_an_answer_says_how_many_rows_are_done_and_which_one_it_waits_for(
    acme: Caller, yard: BatchYard
) -> None:
    batch_id = await yard.plan(lines(ROWS), tenant=acme.tenant)
    first, second, third = await yard.claim(batch_id)

    await yard.commit(second, [good()] * 3)
    await yard.commit(third, [good(), bad(), good()])
    none = await _read(acme, batch_id)
    all_there_are = await _read(acme, batch_id, order="completion")
    await yard.commit(first, [good()] * 3)
    cut = await _read(acme, batch_id, limit=4)
    await yard.finaliser.finish(batch_id)
    ended = await _read(acme, batch_id, offset=7)

    assert (_rows(none), none.headers["x-batchyard-waits-for-row"]) == ((6, 0), "0")
    assert _rows(all_there_are) == (6, 6)
    assert _rows(cut) == (9, 4)
    assert _rows(ended) == (9, 2)
    for answer in (all_there_are, cut, ended):
        assert "x-batchyard-waits-for-row" not in answer.headers


async def test_in_order_of_completion_one_reads_all_that_there_is(
    acme: Caller, yard: BatchYard
) -> None:
    batch_id = await yard.plan(lines(ROWS), tenant=acme.tenant)
    first, second, third = await yard.claim(batch_id)

    await yard.commit(third, [good(), bad(), good()])
    three = await _read(acme, batch_id, order="completion")
    await yard.commit(first, [good()] * 3)
    # An answer that broke off within a slice.
    two_more = await _read(acme, batch_id, order="completion", offset=2)
    await yard.commit(second, [bad()] * 3)
    await yard.finaliser.finish(batch_id)
    await _sweep(yard, batch_id)
    rest = await _read(acme, batch_id, order="completion", offset=4)

    assert _ids(three) == ["row-6", "row-7", "row-8"]
    assert _head(three) == ("false", 3, 6)
    assert _ids(two_more) == ["row-8", "row-0", "row-1", "row-2"]
    assert _ids(rest) == ["row-1", "row-2", "row-3", "row-4", "row-5"]
    assert _head(rest) == ("true", 9, 0)
    whole = (await _read(acme, batch_id, order="completion")).content
    assert whole == three.content[:] + two_more.content[len(_last(three)) :] + (
        b"".join(rest.content.splitlines(keepends=True)[2:])
    )
    await _holds_the_files(yard, batch_id, whole)


@pytest.mark.parametrize("order", ["input", "completion"])
async def test_rows_that_never_ran_come_with_the_end(
    order: Order, acme: Caller, yard: BatchYard
) -> None:
    batch_id = await yard.plan(lines(ROWS), tenant=acme.tenant)
    first, second, third = await yard.claim(batch_id)
    await yard.commit(first, [good()] * 3)
    await yard.state.apply(batch_id, Event.CANCEL_REQUESTED)
    # What was in flight is committed as far as it came.
    await yard.commit(second, [None, bad(), None])
    await yard.state.claims.release(third)
    before = await _read(acme, batch_id, order=order)

    await yard.finaliser.finish(batch_id)
    await _sweep(yard, batch_id)
    offset = _head(before)[1]
    after = await _read(acme, batch_id, order=order, offset=offset)
    pieces = [
        (await _read(acme, batch_id, order=order, offset=place, limit=1)).content
        for place in range(ROWS)
    ]

    seen = ["row-0", "row-1", "row-2", *(["row-4"] if order == "completion" else [])]
    assert _ids(before) == seen
    assert _head(before) == ("false", len(seen), ROWS - len(seen))
    assert _ids(after) == [f"row-{row}" for row in range(3, 9) if f"row-{row}" not in seen]
    assert _head(after) == ("true", 9, 0)
    assert before.content + after.content == b"".join(pieces)
    await _holds_the_files(yard, batch_id, b"".join(pieces))


@pytest.mark.parametrize("order", ["input", "completion"])
async def test_any_place_of_a_large_file_is_found(
    order: Order, acme: Caller, yard: BatchYard
) -> None:
    rows = 300
    batch_id = await yard.plan(lines(rows), tenant=acme.tenant)
    claims = await yard.claim(batch_id)
    for claim in reversed(claims) if order == "completion" else claims:
        await yard.commit(claim, [_large(row) for row in _rows_of(claim)])
    running = (await _read(acme, batch_id, order=order)).content.splitlines(keepends=True)
    await yard.finaliser.finish(batch_id)
    await _sweep(yard, batch_id)

    for place in [0, 1, rows - 1, *random.Random(1).sample(range(rows), 10)]:
        answer = await _read(acme, batch_id, order=order, offset=place, limit=5)
        assert answer.content == b"".join(running[place : place + 5])
    assert len(running) == rows
    await _holds_the_files(yard, batch_id, b"".join(running))


@pytest.mark.parametrize("order", ["input", "completion"])
async def test_a_batch_that_ends_while_it_is_read_is_read_to_its_end(
    order: Order, acme: Caller, yard: BatchYard
) -> None:
    batch_id = await yard.plan(lines(ROWS), tenant=acme.tenant)
    claims = await yard.claim(batch_id)
    for claim in reversed(claims):
        await yard.commit(claim, [good(), bad(), good()])
    reading = ResultLines(yard.state, yard.storage, await yard.state.batches.get(batch_id), order)
    before = [chunk async for chunk in reading.read(0, ROWS)]

    await yard.finaliser.finish(batch_id)
    await _sweep(yard, batch_id)

    assert [chunk async for chunk in reading.read(0, ROWS)] == before
    assert b"".join(before).count(b"\n") == ROWS


async def test_the_order_of_completion_ends_with_a_clear_word(
    acme: Caller, yard: BatchYard, gateway: Gateway
) -> None:
    batch_id = await _completed(yard, acme)
    redis: Redis[str] = Redis.from_url(gateway.settings.redis_url.get_secret_value())
    for what in ("plan", "parts", "commits"):
        keys = [key async for key in redis.scan_iter(match=f"*{what}:{batch_id}*", count=1000)]
        # They are there for a day.
        assert all([86_000 < await redis.ttl(key) <= 86_400 for key in keys])
        await redis.delete(*keys)
    await redis.aclose()

    with pytest.raises(BadRequestError, match="kept for a day") as refused:
        await acme.openai.get(
            f"/batches/{batch_id}/results",
            cast_to=HttpxBinaryResponseContent,
            options={"params": {"order": "completion", "offset": 2}},
        )
    by_input = await acme.openai.get(
        f"/batches/{batch_id}/results",
        cast_to=HttpxBinaryResponseContent,
        options={"params": {"offset": 2}},
    )

    assert (refused.value.param, refused.value.code) == ("order", "order_expired")
    assert len(by_input.text.splitlines()) == ROWS - 2


@pytest.mark.parametrize("order", ["input", "completion"])
async def test_lines_that_are_no_requests_keep_their_places(
    order: Order, acme: Caller, yard: BatchYard, tmp_path: Path
) -> None:
    catalog = load_catalog(tmp_path / "yard.yaml")
    lenient = a_planner(yard.state, yard.storage, catalog, strict_input=False)
    rows = [b"{" if row in (1, 4, 5) else line(f"row-{row}") for row in range(ROWS)]
    batch_id = await yard.submit(b"\n".join(rows), tenant=acme.tenant)
    await lenient.plan(batch_id)
    *others, last = await yard.claim(batch_id)
    for claim in (last, *others[1:]):
        await run_slice(yard, claim, lambda _: good())
    await yard.state.apply(batch_id, Event.CANCEL_REQUESTED)
    await yard.state.claims.release(others[0])
    before = await _read(acme, batch_id, order=order)
    await yard.finaliser.finish(batch_id)

    after = await _read(acme, batch_id, order=order)

    assert len(before.content.splitlines()) == (6 if order == "completion" else 0)
    assert after.content.startswith(before.content)
    found = sorted(map(ids.row_of_result, after.content.splitlines()))
    assert found == list(range(ROWS))


async def test_of_a_batch_that_failed_as_a_whole_what_had_run_can_be_read(
    acme: Caller, yard: BatchYard
) -> None:
    batch_id = await yard.plan(lines(ROWS), tenant=acme.tenant)
    first, _, third = await yard.claim(batch_id)
    for claim in (third, first):
        await yard.commit(claim, [good()] * 3)
    await yard.state.apply(batch_id, Event.LANE_FAILED)

    by_input = await _read(acme, batch_id)
    by_completion = await _read(acme, batch_id, order="completion")

    assert (_ids(by_input), _head(by_input)) == (["row-0", "row-1", "row-2"], ("true", 3, 6))
    assert _head(by_completion) == ("true", 6, 3)
    assert _ids(by_completion)[:3] == ["row-6", "row-7", "row-8"]


async def test_results_go_with_their_files(acme: Caller, yard: BatchYard) -> None:
    batch_id = await _completed(yard, acme)
    output = (await yard.state.batches.get(batch_id)).fields["output_file_id"]
    await acme.openai.files.delete(output)

    answer = await acme.http.get(f"/v1/batches/{batch_id}/results")

    assert answer.status_code == 404
    assert (
        f"its output file {output} was deleted or has expired"
        in (answer.json()["error"]["message"])
    )


async def test_before_the_plan_there_is_nothing_and_nobody_knows_how_much_is_missing(
    acme: Caller, gateway_state: State
) -> None:
    batch_id = await validating(gateway_state, tenant=acme.tenant)

    answer = await _read(acme, batch_id)

    assert answer.content == b""
    assert answer.headers["x-batchyard-complete"] == "false"
    assert "x-batchyard-missing-rows" not in answer.headers


@pytest.mark.parametrize(
    ("query", "param", "message"),
    [
        ("offset=10", "offset", "Invalid 'offset': the batch has 9 requests, but got 10."),
        ("order=best", "order", "Invalid value: 'best'. Supported values are: "),
        ("offset=-1", "offset", "Expected a value >= 0, but got -1 instead."),
        ("offset=x", "offset", "expected an integer, but got a string instead."),
        ("limit=0", "limit", "Expected a value >= 1, but got 0 instead."),
    ],
)
async def test_a_wrong_question_is_refused_with_its_reason(
    query: str, param: str, message: str, acme: Caller, yard: BatchYard
) -> None:
    batch_id = await yard.plan(lines(ROWS), tenant=acme.tenant)

    answer = await acme.http.get(f"/v1/batches/{batch_id}/results?{query}")

    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert message in error["message"]


async def test_nobody_reads_anothers_results(acme: Caller, globex: Caller, yard: BatchYard) -> None:
    batch_id = await yard.plan(lines(ROWS), tenant=acme.tenant)

    answer = await globex.http.get(f"/v1/batches/{batch_id}/results")

    assert answer.status_code == 404


async def _completed(yard: BatchYard, caller: Caller) -> str:
    batch_id = await yard.plan(lines(ROWS), tenant=caller.tenant)
    await yard.run(batch_id, lambda row: good())
    await yard.finaliser.finish(batch_id)
    assert (await yard.state.batches.get(batch_id)).status is Status.COMPLETED
    return batch_id


async def _sweep(yard: BatchYard, batch_id: str) -> None:
    parts = await yard.storage.keys(f"batches/{batch_id}/parts/")
    assert parts
    await yard.storage.remove(parts)


async def _read(caller: Caller, batch_id: str, **query: Any) -> httpx.Response:
    answer = await caller.http.get(f"/v1/batches/{batch_id}/results", params=query)
    assert answer.status_code == 200, answer.text
    return answer


def _rows(answer: httpx.Response) -> tuple[int, int]:
    """Rows that are done, and rows in the answer."""
    return (
        int(answer.headers["x-batchyard-done-rows"]),
        int(answer.headers["x-batchyard-returned-rows"]),
    )


def _head(answer: httpx.Response) -> tuple[str, int, int]:
    complete, offset, missing = (
        answer.headers[f"x-batchyard-{name}"]
        for name in ("complete", "next-offset", "missing-rows")
    )
    return complete, int(offset), int(missing)


def _ids(answer: httpx.Response) -> list[str]:
    return [json.loads(line)["custom_id"] for line in answer.content.splitlines()]


def _last(answer: httpx.Response) -> bytes:
    return answer.content.splitlines(keepends=True)[-1]


async def _holds_the_files(yard: BatchYard, batch_id: str, body: bytes) -> None:
    """Every line of the two files, each once, and nothing else."""
    record = await yard.state.batches.get(batch_id)
    found: list[bytes] = []
    for kind in ("output", "error"):
        if (file_id := record.fields.get(f"{kind}_file_id")) is not None:
            file = await yard.state.files.get(record.tenant, file_id)
            found += (await yard.storage.get(file.key)).splitlines(keepends=True)
    assert sorted(body.splitlines(keepends=True)) == sorted(found)
    assert found


def _rows_of(claim: Claim) -> range:
    return range(claim.slice.first_row, claim.slice.first_row + claim.slice.rows)


def _large(row: int) -> Result:
    """Every seventh one an error; many kilobytes in all."""
    if row % 7 == 3:
        return 400, json.dumps({"error": {"message": "x" * 3000}}).encode()
    return good("x" * (3000 + row))


@pytest.mark.parametrize("order", ["input", "completion"])
async def test_damaged_results_are_never_returned_and_come_when_their_rows_have_run_again(
    order: Order, acme: Caller, yard: BatchYard
) -> None:
    batch_id = await yard.plan(lines(12), tenant=acme.tenant)
    claims = await yard.claim(batch_id)
    for claim in claims[:3]:
        await yard.commit(claim, [good("first")] * 3)
    damaged = (await yard.state.slices.parts(batch_id))[1]
    body = await yard.storage.get(damaged.key)
    await yard.storage.put(damaged.key, body.replace(b"first", b"worst"))

    refused = await acme.http.get(f"/v1/batches/{batch_id}/results", params={"order": order})
    before = await _read(acme, batch_id, order=order)
    await yard.commit(claims[3], [good("first")] * 3)
    meanwhile = await _read(acme, batch_id, order=order)
    [again] = await yard.claim(batch_id)
    await yard.commit(again, [good("second")] * 3)
    rest = await _read(acme, batch_id, order=order, offset=3)
    await yard.finaliser.finish(batch_id)
    ended = await _read(acme, batch_id, order=order, offset=3)

    assert refused.status_code == 503
    for answer in (before, meanwhile):
        assert (_ids(answer), answer.headers["x-batchyard-next-offset"]) == (
            ["row-0", "row-1", "row-2"],
            "3",
        )
    assert again.index == 1
    assert _ids(rest) == _ids(ended) == [f"row-{row}" for row in range(3, 12)]
    assert rest.content == ended.content
    assert b"worst" not in rest.content
