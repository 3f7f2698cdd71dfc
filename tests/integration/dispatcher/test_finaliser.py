import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from dispatcher.finaliser import Finaliser
from dispatcher.reaper import Reaper
from dispatcher.row_check import IncompleteError
from shared import ids
from shared.input.request_lines import split
from shared.ledger.parts import part_key
from shared.lifecycle import Event, Status
from shared.slices import Claim, new_part
from shared.state import State
from tests.batches import LANE
from tests.conftest import minio_client
from tests.integration.dispatcher.conftest import (
    OUTPUT_SECONDS,
    BatchYard,
    Result,
    bad,
    good,
    line,
    lines,
)
from tests.servers import S3
from worker.rows import assemble

#: Names that a careless hand would spoil: escapes, other scripts, separators of lines and of JSON.
_AWKWARD = ['quote " and \\', "日本語 ☃", "new\nline\u2028too", "é" * 500, "</script>,}{"]

_FINISH = """
import asyncio, sys
from dispatcher.finaliser import Finaliser
from shared.state import State
from shared.storage import Storage

async def main(redis_url, namespace, batch_id, output_seconds, *storage):
    state, storage = State(redis_url, namespace=namespace), Storage(*storage)
    await Finaliser(state, storage, output_seconds=int(output_seconds)).finish(batch_id)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("rows", [10, 2], ids=["files of their own", "the only part as it lies"])
async def test_result_files_are_tagged_with_their_tenant_where_that_is_set(
    yard: BatchYard, s3: S3, rows: int
) -> None:
    batch_id = await yard.plan(lines(rows))
    for claim in await yard.claim(batch_id):
        await yard.commit(claim, [good() for _ in _rows(claim)])
    finaliser = Finaliser(yard.state, yard.storage, output_seconds=OUTPUT_SECONDS, tag_results=True)

    await finaliser.finish(batch_id)

    record = await yard.state.batches.get(batch_id)
    output = json.loads(record.fields["output_object"])
    tags = minio_client(s3).get_object_tags(yard.storage.bucket, output["key"])
    assert dict(tags or {}) == {"tenant": record.tenant}


@pytest.mark.parametrize("size", [1, 5 * 1024 * 1024], ids=["small", "S3 copies most of them"])
async def test_parts_become_output_and_errors_in_input_order_to_the_byte(
    yard: BatchYard, size: int
) -> None:
    batch_id = await yard.plan(lines(10))
    claims = await yard.claim(batch_id)
    for claim in reversed(claims):
        await yard.commit(claim, [_mixed(row, size) for row in _rows(claim)])
    parts = await yard.state.slices.parts(batch_id)
    bodies = [(parts[index], await yard.storage.get(parts[index].key)) for index in range(4)]

    await yard.finaliser.finish(batch_id)

    shape = (await yard.state.batches.get(batch_id)).to_openai()
    assert shape.status is Status.COMPLETED
    assert await yard.content(shape.output_file_id) == b"".join(
        body[: part.output_bytes] for part, body in bodies
    )
    assert await yard.content(shape.error_file_id) == b"".join(
        body[part.output_bytes :] for part, body in bodies
    )
    output = await yard.parsed(shape.output_file_id)
    errors = await yard.parsed(shape.error_file_id)
    assert [result["custom_id"] for result in output] == [
        f"row-{row}" for row in (1, 2, 4, 5, 7, 8)
    ]
    assert [result["custom_id"] for result in errors] == [f"row-{row}" for row in (0, 3, 6, 9)]
    assert shape.request_counts.model_dump() == {"total": 10, "completed": 6, "failed": 4}
    assert (shape.usage.input_tokens, shape.usage.output_tokens) == (18, 12)


async def test_the_output_file_is_its_tenants_for_its_time(yard: BatchYard) -> None:
    batch_id = await yard.plan(lines(4))
    await yard.run(batch_id, lambda row: good())

    await yard.finaliser.finish(batch_id)

    record = await yard.state.batches.get(batch_id)
    files, _ = await yard.state.files.page("acme", after=None, limit=9, purpose="batch_output")
    [file] = [file for file in files if file.id == record.fields["output_file_id"]]
    assert file.id == ids.output_file_id(batch_id, "output")
    assert (file.filename, file.purpose) == (f"{batch_id}_output.jsonl", "batch_output")
    assert file.bytes == len(await yard.content(file.id))
    assert file.created_at == record.number("finalizing_at")
    assert file.expires_at == file.created_at + OUTPUT_SECONDS
    found = json.loads(record.fields["output_object"])
    stored = await yard.storage.stat(file.key)
    assert (found["key"], found["etag"], found["size"]) == stored


async def test_a_batch_may_say_how_long_its_output_is_kept(yard: BatchYard) -> None:
    batch_id = await yard.plan(lines(1), output_seconds=77)
    await yard.run(batch_id, lambda row: good())

    await yard.finaliser.finish(batch_id)

    file = await yard.state.files.get("acme", ids.output_file_id(batch_id, "output"))
    assert file.expires_at == file.created_at + 77


async def test_without_errors_there_is_no_error_file(yard: BatchYard) -> None:
    batch_id = await yard.plan(lines(4))
    await yard.run(batch_id, lambda row: good())

    await yard.finaliser.finish(batch_id)

    shape = (await yard.state.batches.get(batch_id)).to_openai()
    assert shape.error_file_id is None
    assert len(await yard.parsed(shape.output_file_id)) == 4


async def test_with_errors_only_there_is_no_output_file(yard: BatchYard) -> None:
    batch_id = await yard.plan(lines(4))
    await yard.run(batch_id, lambda row: bad())

    await yard.finaliser.finish(batch_id)

    shape = (await yard.state.batches.get(batch_id)).to_openai()
    assert shape.status is Status.COMPLETED
    assert shape.output_file_id is None
    assert [result["custom_id"] for result in await yard.parsed(shape.error_file_id)] == [
        f"row-{row}" for row in range(4)
    ]


@pytest.mark.parametrize(("result", "kind"), [(good(), "output"), (bad(), "error")])
async def test_the_only_part_of_a_small_batch_becomes_its_file_without_a_copy(
    result: Result, kind: str, yard: BatchYard
) -> None:
    batch_id = await yard.plan(lines(3))
    await yard.run(batch_id, lambda row: result)
    part = (await yard.state.slices.parts(batch_id))[0]

    await yard.finaliser.finish(batch_id)
    await Reaper(yard.state, yard.storage).sweep()

    file = await yard.state.files.get("acme", ids.output_file_id(batch_id, kind))
    assert (file.key, file.etag) == (part.key, (await yard.storage.stat(part.key)).etag)
    assert len(await yard.parsed(file.id)) == 3
    assert [
        key for key in await yard.storage.keys(f"batches/{batch_id}/") if key.endswith(".jsonl")
    ] == [part.key]


async def test_a_part_with_results_and_errors_is_taken_apart(yard: BatchYard) -> None:
    batch_id = await yard.plan(lines(3))
    await yard.run(batch_id, _mixed)

    await yard.finaliser.finish(batch_id)

    await _assert_completed_once(yard, batch_id, rows=3)


async def test_a_slice_that_was_claimed_again_leaves_no_part_behind(yard: BatchYard) -> None:
    batch_id = await yard.plan(lines(3))
    [first] = await yard.claim(batch_id)
    # A job that died between writing its part and committing it.
    await yard.storage.put(f"batches/{batch_id}/parts/000000-{first.epoch}.jsonl", b"lost")
    await yard.state.claims.release(first)
    await yard.run(batch_id, lambda row: good())

    await yard.finaliser.finish(batch_id)
    await Reaper(yard.state, yard.storage).sweep()

    assert await yard.storage.keys(f"batches/{batch_id}/parts/") == []
    shape = (await yard.state.batches.get(batch_id)).to_openai()
    assert len(await yard.parsed(shape.output_file_id)) == 3


@pytest.mark.parametrize("results", [[None, None, None], [good(), good(), None]])
async def test_a_batch_with_a_missing_row_is_not_completed(
    results: list[Result], yard: BatchYard
) -> None:
    batch_id = await yard.plan(lines(6))
    first, second = await yard.claim(batch_id)
    await yard.commit(first, [good()] * 3)
    await yard.commit(second, results)

    with pytest.raises(IncompleteError, match=r"row \d has no result"):
        await yard.finaliser.finish(batch_id)

    assert (await yard.state.batches.get(batch_id)).status is Status.FINALIZING
    assert (await yard.events(batch_id))[-1] == "batch.finalizing"


async def test_a_batch_with_a_doubled_row_is_not_completed(yard: BatchYard) -> None:
    batch_id = await yard.plan(lines(6))
    first, second = await yard.claim(batch_id)
    await yard.commit(first, [good()] * 3)
    body = assemble(batch_id, second.slice, split(lines(6))[3:], [good()] * 3)
    head, _, tail = body.output.splitlines(keepends=True)
    part = new_part(part_key(batch_id, 1, second.epoch), head + head + tail, b"", body.usage)
    stored = await yard.storage.put(part.key, head + head + tail)
    await yard.state.claims.commit(second, part._replace(etag=stored.etag))

    with pytest.raises(IncompleteError, match="row 3 has two results"):
        await yard.finaliser.finish(batch_id)

    assert (await yard.state.batches.get(batch_id)).status is Status.FINALIZING
    assert not [key for key in await yard.storage.keys("") if "/commit-" in key]


_CLOSED = [
    (Event.CANCEL_REQUESTED, {}, Status.CANCELLED, "batch_cancelled"),
    (Event.WINDOW_CLOSED, {"window_closed": 1}, Status.EXPIRED, "batch_expired"),
]


@pytest.mark.parametrize(("event", "fields", "end", "code"), _CLOSED)
async def test_a_closed_batch_keeps_what_it_has_and_names_every_other_row(
    event: Event, fields: dict[str, Any], end: Status, code: str, yard: BatchYard
) -> None:
    names = [*_AWKWARD, *(f"row-{row}" for row in range(5, 10))]
    body = b"\xef\xbb\xbf" + b"\r\n\n".join(
        line(name, ascii_only=row % 2 == 0) for row, name in enumerate(names)
    )
    batch_id = await yard.plan(body)
    slices = await yard.claim(batch_id)
    # Of four slices: whole, in part with an error in it, and two that never ran.
    await yard.commit(slices[1], [good(), bad(), good()])
    await yard.state.apply(batch_id, event, fields)
    await yard.commit(slices[2], [None, bad(), None])
    for claim in (slices[0], slices[3]):
        await yard.state.claims.release(claim)

    await yard.finaliser.finish(batch_id)

    shape = (await yard.state.batches.get(batch_id)).to_openai()
    assert shape.status is end
    assert [result["custom_id"] for result in await yard.parsed(shape.output_file_id)] == [
        names[3],
        names[5],
    ]
    errors = await yard.parsed(shape.error_file_id)
    others = [0, 1, 2, 4, 6, 7, 8, 9]
    assert [result["custom_id"] for result in errors] == [names[row] for row in others]
    assert [result["id"] for result in errors] == [ids.result_id(batch_id, row) for row in others]
    for row, result in zip(others, errors, strict=True):
        if row in (4, 7):
            assert (result["response"]["status_code"], result["error"]) == (400, None)
        else:
            assert (result["response"], result["error"]["code"]) == (None, code)
    assert shape.request_counts.model_dump() == {"total": 10, "completed": 2, "failed": 8}


@pytest.mark.parametrize(("event", "fields", "end", "code"), _CLOSED)
async def test_a_closed_batch_of_which_nothing_ran_has_error_lines_only(
    event: Event, fields: dict[str, Any], end: Status, code: str, yard: BatchYard
) -> None:
    batch_id = await yard.plan(lines(7))
    await yard.state.apply(batch_id, event, fields)

    await yard.finaliser.finish(batch_id)

    shape = (await yard.state.batches.get(batch_id)).to_openai()
    assert shape.status is end
    assert shape.output_file_id is None
    assert [
        (result["custom_id"], result["error"]["code"])
        for result in await yard.parsed(shape.error_file_id)
    ] == [(f"row-{row}", code) for row in range(7)]


async def test_a_batch_that_was_cancelled_without_a_plan_has_no_files(yard: BatchYard) -> None:
    batch_id = await yard.submit(lines(7))
    await yard.state.apply(batch_id, Event.CANCEL_REQUESTED)

    await yard.finaliser.finish(batch_id)

    shape = (await yard.state.batches.get(batch_id)).to_openai()
    assert shape.status is Status.CANCELLED
    assert (shape.output_file_id, shape.error_file_id) == (None, None)
    assert (await yard.events(batch_id))[-1] == "batch.cancelled"


async def test_a_batch_whose_rows_all_ran_may_still_be_cancelled(yard: BatchYard) -> None:
    batch_id = await yard.plan(lines(4))
    await yard.run(batch_id, lambda row: good())
    await yard.state.apply(batch_id, Event.CANCEL_REQUESTED)

    await yard.finaliser.finish(batch_id)

    shape = (await yard.state.batches.get(batch_id)).to_openai()
    assert shape.status is Status.CANCELLED
    assert len(await yard.parsed(shape.output_file_id)) == 4
    assert shape.error_file_id is None


@pytest.mark.parametrize(("event", "fields", "end", "code"), _CLOSED)
async def test_a_batch_with_slices_in_flight_is_left_alone(
    event: Event, fields: dict[str, Any], end: Status, code: str, yard: BatchYard
) -> None:
    batch_id = await yard.plan(lines(6))
    first, second = await yard.claim(batch_id)
    await yard.state.apply(batch_id, event, fields)
    await yard.commit(first, [good()] * 3)
    before = await yard.storage.keys("")

    await yard.finaliser.finish(batch_id)

    assert await yard.storage.keys("") == before
    await yard.state.claims.release(second)
    await yard.finaliser.finish(batch_id)
    assert (await yard.state.batches.get(batch_id)).status is end


async def test_a_batch_that_ended_is_left_alone(yard: BatchYard) -> None:
    batch_id = await yard.plan(lines(3))
    await yard.run(batch_id, lambda row: good())
    await yard.finaliser.finish(batch_id)
    before = await _world(yard, batch_id)

    await yard.finaliser.finish(batch_id)

    assert await _world(yard, batch_id) == before


@pytest.mark.parametrize(
    "point", ["finaliser.output_written", "finaliser.assembled", "finaliser.committed"]
)
async def test_a_finaliser_that_is_killed_is_followed_to_the_same_result(
    point: str, yard: BatchYard, redis_url: str, namespace: str, s3: S3
) -> None:
    batch_id = await yard.plan(lines(9))
    await yard.run(batch_id, _mixed)
    arguments = [redis_url, namespace, batch_id, str(OUTPUT_SECONDS), *s3, yard.storage.bucket]

    killed = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", _FINISH, *arguments],
        env={**os.environ, "BATCHYARD_CRASH_AT": point},
        cwd=Path(__file__).parents[3],
        check=False,
        timeout=60,
    )
    assert killed.returncode == -signal.SIGKILL
    assert (await yard.state.batches.get(batch_id)).status is Status.FINALIZING
    left = {key: await yard.storage.get(key) for key in await _results(yard, batch_id)}
    await yard.finaliser.finish(batch_id)

    assert left
    for key, body in left.items():
        assert await yard.storage.get(key) == body
    await _assert_completed_once(yard, batch_id, rows=9)


async def test_when_redis_went_back_in_time_the_files_of_the_first_end_stay(
    yard: BatchYard, redis_url: str, namespace: str
) -> None:
    redis: Redis[bytes] = Redis.from_url(redis_url)
    batch_id = await yard.plan(lines(6))
    first, second = await yard.claim(batch_id)
    await yard.commit(first, [good(), bad(), good()])
    before = await _dumped(redis, namespace)
    await yard.commit(second, [good("the first time")] * 3)
    await yard.finaliser.finish(batch_id)
    ended = (await yard.state.batches.get(batch_id)).fields
    kept = await yard.content(ended["output_file_id"])

    await _set_back(redis, namespace, before)
    assert (await yard.state.batches.get(batch_id)).status is Status.IN_PROGRESS
    await yard.state.claims.release(second)
    [again] = await yard.claim(batch_id)
    await yard.commit(again, [good("the second time")] * 3)
    await yard.finaliser.finish(batch_id)

    record = await yard.state.batches.get(batch_id)
    assert record.status is Status.COMPLETED
    assert (record.fields["completed"], record.fields["failed"]) == ("5", "1")
    file = await yard.state.files.get("acme", record.fields["output_file_id"])
    assert (await yard.storage.stat(file.key)).etag == file.etag
    assert await yard.content(record.fields["output_file_id"]) == kept
    assert b"the second time" not in kept


async def _dumped(redis: "Redis[bytes]", namespace: str) -> dict[bytes, bytes]:
    """All of the namespace."""
    return {key: await redis.dump(key) for key in await _keys(redis, namespace)}


async def _set_back(redis: "Redis[bytes]", namespace: str, dumped: dict[bytes, bytes]) -> None:
    await redis.delete(*await _keys(redis, namespace))
    for key, value in dumped.items():
        await redis.restore(key, 0, value)
    await redis.aclose()


async def _keys(redis: "Redis[bytes]", namespace: str) -> list[bytes]:
    return [key async for key in redis.scan_iter(match=f"{namespace}*", count=1000)]


async def test_of_two_finalisers_at_once_there_is_one_result(yard: BatchYard) -> None:
    batch_id = await yard.plan(lines(30))
    await yard.run(batch_id, _mixed)
    other = Finaliser(yard.state, yard.storage, output_seconds=3600)

    await asyncio.gather(*(one.finish(batch_id) for one in (yard.finaliser, other)))

    await _assert_completed_once(yard, batch_id, rows=30)


async def test_one_that_was_frozen_while_the_batch_expired_does_not_undo_its_cancelling(
    yard: BatchYard, redis: "Redis[str]", redis_url: str, namespace: str
) -> None:
    batch_id = await yard.plan(lines(4))
    await yard.state.apply(batch_id, Event.WINDOW_CLOSED, {"window_closed": 1})
    # What the frozen one has read: Redis as it is now.
    past = namespace.replace("}", "-past}")
    async for key in redis.scan_iter(match=f"{namespace}*", count=1000):
        await redis.copy(key, key.replace(namespace, past))
    await yard.state.apply(batch_id, Event.CANCEL_REQUESTED)
    await yard.finaliser.finish(batch_id)
    shape = (await yard.state.batches.get(batch_id)).to_openai()
    before = await yard.content(shape.error_file_id)

    state = State(redis_url, namespace=past)
    await Finaliser(state, yard.storage, output_seconds=1).finish(batch_id)

    assert (await state.batches.get(batch_id)).status is Status.EXPIRED
    assert await yard.content(shape.error_file_id) == before
    assert b"batch_cancelled" in before
    await state.close()
    await redis.delete(*[key async for key in redis.scan_iter(match=f"{past}*", count=1000)])


async def test_parts_are_swept_after_the_end_and_nothing_else_is(yard: BatchYard) -> None:
    ended, live = await yard.plan(lines(6)), await yard.plan(lines(6))
    for batch_id in (ended, live):
        first, second = await yard.claim(batch_id)
        await yard.commit(first, [good()] * 3)
        if batch_id == ended:
            await yard.commit(second, [good()] * 3)
    await yard.finaliser.finish(ended)
    before = set(await yard.storage.keys(""))

    await Reaper(yard.state, yard.storage).sweep()

    gone = before - set(await yard.storage.keys(""))
    assert gone == {key for key in before if key.startswith(f"batches/{ended}/parts/")}
    assert len(gone) == 2
    assert await yard.state.files.garbage() == []


async def test_a_part_that_was_written_and_never_committed_is_swept_as_well(
    yard: BatchYard,
) -> None:
    batch_id = await yard.plan(lines(3))
    [claim] = await yard.claim(batch_id)
    orphan = f"batches/{batch_id}/parts/000000-{claim.epoch}.jsonl"
    await yard.storage.put(orphan, b"x\n")
    await yard.state.claims.release(claim)
    await yard.state.apply(batch_id, Event.CANCEL_REQUESTED)
    await yard.finaliser.finish(batch_id)

    await Reaper(yard.state, yard.storage).sweep()

    assert orphan not in await yard.storage.keys("batches/")


async def test_parts_are_swept_once_more_a_day_later(
    yard: BatchYard, redis: "Redis[str]", namespace: str
) -> None:
    batch_id = await yard.plan(lines(3))
    [claim] = await yard.claim(batch_id)
    await yard.state.claims.release(claim)
    await yard.state.apply(batch_id, Event.CANCEL_REQUESTED)
    await yard.finaliser.finish(batch_id)
    reaper = Reaper(yard.state, yard.storage)
    await reaper.sweep()
    late = f"batches/{batch_id}/parts/000000-{claim.epoch}.jsonl"
    await yard.storage.put(late, b"x\n")
    waiting = dict(await redis.zrange(f"{namespace}garbage", 0, -1, withscores=True))
    due = waiting[f"batches/{batch_id}/parts//"]

    await redis.zadd(f"{namespace}garbage", dict.fromkeys(waiting, 1))
    await reaper.sweep()

    assert time.time() + 86_000 < due < time.time() + 86_400
    assert late not in await yard.storage.keys("batches/")


async def test_a_sweep_of_nothing_is_done(yard: BatchYard) -> None:
    batch_id = await yard.plan(lines(3))
    await yard.state.apply(batch_id, Event.CANCEL_REQUESTED)
    await yard.finaliser.finish(batch_id)
    reaper = Reaper(yard.state, yard.storage)

    await reaper.sweep()
    await reaper.sweep()

    assert await yard.state.files.garbage() == []


async def test_claims_that_ran_out_go_back(yard: BatchYard) -> None:
    batch_id = await yard.plan(lines(3))
    [claim] = await yard.claim(batch_id)
    await yard.state.claims.renew([claim], lease_seconds=0)

    await Reaper(yard.state, yard.storage).release_claims()

    assert await yard.state.claims.inflight(batch_id) == 0
    [again] = await yard.state.claims.take(LANE, "job-1", lease_seconds=60, slices=9, rows=99)
    assert again.epoch == claim.epoch + 1


def _mixed(row: int, size: int = 1) -> Result:
    """Every third row is an error, and the other answers have about so many bytes."""
    return bad() if row % 3 == 0 else good(f"answer {row}" * -(-size // 8))


def _rows(claim: Claim) -> range:
    return range(claim.slice.first_row, claim.slice.first_row + claim.slice.rows)


async def _results(yard: BatchYard, batch_id: str) -> list[str]:
    keys = await yard.storage.keys(f"batches/{batch_id}/")
    return [key for key in keys if "/parts/" not in key]


async def _world(yard: BatchYard, batch_id: str) -> object:
    keys = await yard.storage.keys("")
    record = await yard.state.batches.get(batch_id)
    return record, await yard.events(batch_id), [await yard.storage.stat(key) for key in keys]


async def _assert_completed_once(yard: BatchYard, batch_id: str, *, rows: int) -> None:
    """One event, and a result that record, files, objects and commit agree on."""
    record = await yard.state.batches.get(batch_id)
    shape = record.to_openai()
    assert (await yard.events(batch_id)).count("batch.completed") == 1
    assert shape.status is Status.COMPLETED
    errors = [row for row in range(rows) if row % 3 == 0]
    results = [row for row in range(rows) if row % 3]
    for kind, file_id, expected in (
        ("output", shape.output_file_id, results),
        ("error", shape.error_file_id, errors),
    ):
        found = await yard.parsed(file_id)
        assert [result["custom_id"] for result in found] == [f"row-{row}" for row in expected]
        file = json.loads(record.fields[f"{kind}_object"])
        assert await yard.storage.stat(file["key"]) == (
            file["key"],
            file["etag"],
            file["size"],
        )
    [commit] = [key for key in await yard.storage.keys(f"batches/{batch_id}/") if "/commit-" in key]
    content = json.loads(await yard.storage.get(commit))
    assert content["output"]["etag"] == json.loads(record.fields["output_object"])["etag"]
    files, _ = await yard.state.files.page("acme", after=None, limit=99, purpose="batch_output")
    assert len([file for file in files if batch_id in file.filename]) == 2
