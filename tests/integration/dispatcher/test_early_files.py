"""Output files that are begun while their batches run: the same bytes, and nothing left behind."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from dispatcher.early_files import EarlyFiles
from dispatcher.finaliser import Finaliser
from dispatcher.hurry import Hurry
from dispatcher.result_files import ResultFiles
from dispatcher.row_check import IncompleteError
from shared.catalog import Catalog
from shared.input.request_lines import split
from shared.ledger.commits import read_commit
from shared.ledger.parts import drop_broken, part_key
from shared.lifecycle import Event, Status
from shared.slices import Claim, PlannedSlice, new_part
from shared.state import BatchRecord, State
from shared.storage import PART_BYTES, Storage
from tests.chaos.points import EARLY_POINTS
from tests.conftest import minio_client
from tests.eventually import eventually
from tests.faults.s3_proxy import Refusal, S3Proxy, s3_proxy
from tests.integration.dispatcher.conftest import (
    OUTPUT_SECONDS,
    BatchYard,
    Result,
    a_planner,
    bad,
    good,
    line,
    lines,
)
from tests.servers import S3
from worker.rows import assemble

_MIB = 1024 * 1024
#: Of an answer: a slice of three has less than S3 copies itself, and two of them make an upload.
_SIZE = 3 * _MIB // 2
#: What is there of a batch's output after three of its slices, and not after two.
_WORTH = 12 * _MIB

_EARLY = """
import asyncio, sys
from dispatcher.early_files import EarlyFiles
from shared.state import State
from shared.storage import PART_BYTES, Storage

async def main(redis_url, namespace, large_bytes, *storage):
    state, storage = State(redis_url, namespace=namespace), Storage(*storage)
    await EarlyFiles(state, storage, large_bytes=int(large_bytes)).run()

asyncio.run(main(*sys.argv[1:]))
"""


class Early:
    """A dispatcher that begins files, and its finaliser."""

    def __init__(self, state: State, storage: Storage, **limits: Any) -> None:
        worth = {"worth_bytes": _WORTH, "large_bytes": _WORTH}
        self.hurry = Hurry()
        self.files = EarlyFiles(state, storage, self.hurry, **(worth | limits))
        self.finaliser = Finaliser(
            state, storage, output_seconds=OUTPUT_SECONDS, early_files=self.files
        )
        self.running = asyncio.create_task(self.files.run())

    async def stop(self) -> None:
        self.running.cancel()
        with suppress(asyncio.CancelledError):
            await self.running


@pytest.fixture
async def early(yard: BatchYard) -> AsyncIterator[Early]:
    one = Early(yard.state, yard.storage)
    yield one
    await one.stop()


@asynccontextmanager
async def _early_behind_a_proxy(yard: BatchYard, s3: S3) -> AsyncIterator[tuple[Early, S3Proxy]]:
    with s3_proxy(s3.endpoint) as proxy:
        storage = Storage(proxy.endpoint, *s3[1:], yard.storage.bucket)
        early = Early(yard.state, storage)
        try:
            yield early, proxy
        finally:
            await early.stop()
            storage.close()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Has one more for each time that an early file has all that there is."""
    passed: list[str] = []

    def note(name: str) -> None:
        passed.extend([name] if name in EARLY_POINTS else [])

    monkeypatch.setattr("dispatcher.early_files.crash.point", note)
    return passed


def _answer(row: int, said: str = "answer", size: int = _SIZE) -> Result:
    return good(f"{said} {row} ".ljust(size, "x"))


def _small_answer(row: int) -> Result:
    return _answer(row, size=10)


def _with_errors(row: int) -> Result:
    return bad() if row % 3 == 0 else _answer(row, size=5 * _MIB // 2)


def _large_parts(row: int) -> Result:
    return _answer(row, size=4 * _MIB)


async def _commit(yard: BatchYard, claims: list[Claim], result: Callable[[int], Result]) -> None:
    for claim in claims:
        await yard.commit(claim, [result(row) for row in claim.slice.row_numbers])


def _uploads(yard: BatchYard, s3: S3) -> list[str]:
    """The keys of what has been begun in S3."""
    found = minio_client(s3)._list_multipart_uploads(yard.storage.bucket)  # noqa: SLF001  # the client shows them nowhere else
    return [upload.object_name or "" for upload in found.uploads]


async def _output(yard: BatchYard, batch_id: str) -> bytes:
    return await yard.content((await yard.state.batches.get(batch_id)).fields["output_file_id"])


async def _assert_is_what_is_made_at_the_end(yard: BatchYard, batch_id: str, rows: int) -> None:
    """Its files are those that a finaliser without an early file makes of the same parts."""
    record = await yard.state.batches.get(batch_id)
    assert record.status is Status.COMPLETED
    told = await _output(yard, batch_id)
    commit = await read_commit(yard.storage, batch_id, Event.OUTPUT_COMMITTED)
    made = await ResultFiles(yard.state, yard.storage).make(record, Event.OUTPUT_COMMITTED, None)
    assert (commit.output, commit.error) == made
    assert await _output(yard, batch_id) == told
    shape = record.to_openai().request_counts
    assert (shape.completed + shape.failed, shape.total) == (rows, rows)


@pytest.mark.parametrize("result", [_with_errors, _large_parts, _answer])
async def test_an_early_file_has_the_bytes_and_etag_of_one_that_is_made_at_the_end(
    result: Callable[[int], Result], yard: BatchYard, early: Early, waits: list[str], s3: S3
) -> None:
    """With errors among the rows, parts that S3 copies, and neither."""
    batch_id = await yard.plan(lines(14))
    claims = await yard.claim(batch_id)
    await _commit(yard, [*claims[:3], claims[4]], result)
    await eventually(lambda: len(waits) > 0)
    begun = _uploads(yard, s3)
    before = [key for key in await yard.storage.keys(f"batches/{batch_id}/") if "parts" not in key]
    await _commit(yard, claims[3:4], result)

    await early.finaliser.finish(batch_id)

    assert begun == [f"batches/{batch_id}/{Event.OUTPUT_COMMITTED}/output.jsonl"]
    assert not [key for key in before if key.endswith(".jsonl")]
    assert _uploads(yard, s3) == []
    await _assert_is_what_is_made_at_the_end(yard, batch_id, 14)


async def test_what_was_read_early_is_not_read_again(
    yard: BatchYard, early: Early, waits: list[str]
) -> None:
    batch_id = await yard.plan(lines(12))
    claims = await yard.claim(batch_id)
    await _commit(yard, claims[:3], _answer)
    await eventually(lambda: len(waits) > 0)
    parts = await yard.state.slices.parts(batch_id)
    await yard.storage.remove([parts[index].key for index in range(3)])
    await _commit(yard, claims[3:], _answer)

    await early.finaliser.finish(batch_id)

    assert (await yard.state.batches.get(batch_id)).status is Status.COMPLETED
    found = [json.loads(text)["custom_id"] for text in split(await _output(yard, batch_id))]
    assert found == [f"row-{row}" for row in range(12)]


async def test_it_grows_while_no_batch_is_planned_or_ended(
    yard: BatchYard,
    early: Early,
    waits: list[str],
    s3: S3,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dispatcher.early_files._GIVE_WAY_SECONDS", 3600.0)
    batch_id = await yard.plan(lines(12))
    claims = await yard.claim(batch_id)
    with early.hurry.here():
        await _commit(yard, claims[:3], _large_parts)
        await eventually(lambda: _uploads(yard, s3) != [])
        await asyncio.sleep(0.5)
        assert waits == []

    await eventually(lambda: len(waits) > 0)

    # For a short time only, and not at all on the way to its end.
    monkeypatch.undo()
    await _commit(yard, claims[3:], _large_parts)
    with early.hurry.here():
        await early.finaliser.finish(batch_id)
    await _assert_is_what_is_made_at_the_end(yard, batch_id, 12)


async def test_slices_that_lie_between_each_other_are_waited_for(
    state: State, storage: Storage, catalog: Catalog, early: Early, waits: list[str], s3: S3
) -> None:
    planner = a_planner(state, storage, catalog, mixed_batches=True)
    mixed = BatchYard(state, storage, planner, early.finaliser)
    models = ["m", "m", "other", "other", "m", "other", "m", "m"]
    body = b"".join(line(f"row-{row}", model=model) + b"\n" for row, model in enumerate(models))
    batch_id = await mixed.plan(body)
    claims = await mixed.claim(batch_id)
    results = lambda row: bad() if row == 1 else _answer(row, size=7 * _MIB)  # noqa: E731  # two lines would say no more
    # Rows 0, 1 and 4: those between them are missing.
    await _commit(mixed, claims[:1], results)
    await early.files.look()
    assert _uploads(mixed, s3) == []
    await _commit(mixed, claims[1:2], results)
    await eventually(lambda: len(waits) > 0)
    assert len(_uploads(mixed, s3)) == 1
    await _commit(mixed, claims[2:], results)

    await early.finaliser.finish(batch_id)

    assert _uploads(mixed, s3) == []
    await _assert_is_what_is_made_at_the_end(mixed, batch_id, 8)


async def test_a_part_that_was_made_again_after_it_was_read_gives_its_new_bytes(
    yard: BatchYard, early: Early, waits: list[str], s3: S3
) -> None:
    batch_id = await yard.plan(lines(12))
    claims = await yard.claim(batch_id)
    await _commit(yard, claims[:3], lambda row: _answer(row, "first"))
    await eventually(lambda: len(waits) > 0)
    part = (await yard.state.slices.parts(batch_id))[1]
    await yard.storage.put(part.key, b"damaged")
    plan = (await yard.state.batches.get(batch_id)).fields["plan"]
    assert await drop_broken(yard.state, yard.storage, batch_id, plan) == {1: "again"}
    again = [claim for claim in await yard.claim(batch_id) if claim.index == 1]
    await _commit(yard, [*again, *claims[3:]], lambda row: _answer(row, "second"))

    await early.finaliser.finish(batch_id)

    said = [
        json.loads(text)["response"]["body"]["choices"][0].split()[0]
        for text in split(await _output(yard, batch_id))
    ]
    assert said == ["first"] * 3 + ["second"] * 3 + ["first"] * 3 + ["second"] * 3
    assert _uploads(yard, s3) == []
    await _assert_is_what_is_made_at_the_end(yard, batch_id, 12)


async def test_a_part_that_is_broken_ends_the_early_file_alone(
    yard: BatchYard, early: Early, s3: S3
) -> None:
    batch_id = await yard.plan(lines(12))
    claims = await yard.claim(batch_id)
    await _commit(yard, claims[:1], _answer)
    key = (await yard.state.slices.parts(batch_id))[0].key
    await yard.storage.put(key, b"damaged")
    await _commit(yard, claims[1:], _answer)

    await early.finaliser.finish(batch_id)
    assert (await yard.state.batches.get(batch_id)).status is Status.IN_PROGRESS
    await _commit(yard, await yard.claim(batch_id), _answer)
    await early.finaliser.finish(batch_id)

    assert _uploads(yard, s3) == []
    await _assert_is_what_is_made_at_the_end(yard, batch_id, 12)


@pytest.mark.parametrize("place", ["early", "late"])
async def test_a_row_that_is_missing_or_doubled_is_noticed(
    place: str, yard: BatchYard, early: Early, waits: list[str], s3: S3
) -> None:
    batch_id = await yard.plan(lines(12))
    claims = await yard.claim(batch_id)
    odd = 1 if place == "early" else 3
    for claim in claims:
        if claim.index == 3:
            await eventually(lambda: len(waits) > 0)
        if claim.index == odd:
            await _commit_doubled(yard, claim)
        else:
            await _commit(yard, [claim], _answer)

    with pytest.raises(IncompleteError, match=rf"row {3 * odd} has two results"):
        await early.finaliser.finish(batch_id)

    assert (await yard.state.batches.get(batch_id)).status is Status.FINALIZING
    assert not [key for key in await yard.storage.keys("") if "/commit-" in key]
    assert _uploads(yard, s3) == []


@pytest.mark.parametrize(
    ("event", "fields", "end"),
    [
        (Event.CANCEL_REQUESTED, {}, Status.CANCELLED),
        (Event.WINDOW_CLOSED, {"window_closed": 1}, Status.EXPIRED),
    ],
)
async def test_a_batch_that_is_closed_leaves_nothing_of_its_early_file(
    event: Event,
    fields: dict[str, Any],
    end: Status,
    yard: BatchYard,
    early: Early,
    waits: list[str],
    s3: S3,
) -> None:
    batch_id = await yard.plan(lines(12))
    claims = await yard.claim(batch_id)
    await _commit(yard, claims[:3], _answer)
    await eventually(lambda: len(waits) > 0)
    await yard.state.apply(batch_id, event, fields)
    await yard.state.claims.release(claims[3])

    await early.finaliser.finish(batch_id)

    assert (await yard.state.batches.get(batch_id)).status is end
    assert len(split(await _output(yard, batch_id))) == 9
    await eventually(lambda: _uploads(yard, s3) == [])
    keys = await yard.storage.keys(f"batches/{batch_id}/{Event.OUTPUT_COMMITTED}/")
    assert keys == []


async def test_a_batch_that_stands_still_keeps_no_upload_until_it_goes_on(
    yard: BatchYard, waits: list[str], s3: S3
) -> None:
    early = Early(yard.state, yard.storage, idle_seconds=0)
    batch_id = await yard.plan(lines(15))
    claims = await yard.claim(batch_id)
    await _commit(yard, claims[:3], _answer)
    await yard.state.controls.pause(batch_id)
    await eventually(lambda: len(waits) > 0 and _uploads(yard, s3) == [])
    for _ in range(3):
        await early.files.look()
    assert len(waits) == 1
    await yard.state.controls.resume(batch_id)

    await _commit(yard, claims[3:4], _answer)
    await eventually(lambda: len(waits) == 2)
    await _commit(yard, claims[4:], _answer)
    await early.finaliser.finish(batch_id)

    await _assert_is_what_is_made_at_the_end(yard, batch_id, 15)
    await early.stop()


@pytest.mark.parametrize("point", EARLY_POINTS)
async def test_a_dispatcher_that_dies_over_an_early_file_is_followed(
    point: str, yard: BatchYard, redis_url: str, namespace: str, s3: S3
) -> None:
    batch_id = await yard.plan(lines(12))
    claims = await yard.claim(batch_id)
    await _commit(yard, claims[:3], _answer)

    killed = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", _EARLY, redis_url, namespace, str(_WORTH), *s3, yard.storage.bucket],
        env={**os.environ, "BATCHYARD_CRASH_AT": point},
        cwd=Path(__file__).parents[3],
        check=False,
        timeout=60,
    )
    assert killed.returncode == -signal.SIGKILL
    assert len(_uploads(yard, s3)) == 1
    await _commit(yard, claims[3:], _answer)
    await yard.finaliser.finish(batch_id)

    await _assert_is_what_is_made_at_the_end(yard, batch_id, 12)
    assert await yard.storage.abort_older_than(-3600) == 1
    assert _uploads(yard, s3) == []


async def test_a_dispatcher_that_stops_leaves_no_upload(
    yard: BatchYard, early: Early, waits: list[str], s3: S3
) -> None:
    batch_id = await yard.plan(lines(12))
    claims = await yard.claim(batch_id)
    await _commit(yard, claims[:3], _answer)
    await eventually(lambda: len(waits) > 0)
    assert len(_uploads(yard, s3)) == 1

    await early.stop()

    assert _uploads(yard, s3) == []


async def test_of_two_dispatchers_one_ends_the_batch_and_nothing_else_is_left(
    yard: BatchYard, early: Early, waits: list[str], s3: S3
) -> None:
    other = Early(yard.state, yard.storage)
    batch_id = await yard.plan(lines(12))
    claims = await yard.claim(batch_id)
    await _commit(yard, claims[:3], _answer)
    await eventually(lambda: len(waits) > 1 and len(_uploads(yard, s3)) == 2)
    await _commit(yard, claims[3:], _answer)

    await asyncio.gather(*(one.finaliser.finish(batch_id) for one in (early, other)))

    assert (await yard.events(batch_id)).count("batch.completed") == 1
    await eventually(lambda: _uploads(yard, s3) == [])
    await _assert_is_what_is_made_at_the_end(yard, batch_id, 12)
    await other.stop()


async def test_a_file_whose_upload_was_swept_is_made_again(
    yard: BatchYard, early: Early, waits: list[str], s3: S3
) -> None:
    batch_id = await yard.plan(lines(12))
    claims = await yard.claim(batch_id)
    await _commit(yard, claims[:3], _answer)
    await eventually(lambda: len(waits) > 0)
    assert await yard.storage.abort_older_than(-3600) == 1
    await _commit(yard, claims[3:], _answer)

    await early.finaliser.finish(batch_id)

    assert _uploads(yard, s3) == []
    await _assert_is_what_is_made_at_the_end(yard, batch_id, 12)


async def test_when_s3_refuses_an_early_file_the_batch_ends_all_the_same(
    yard: BatchYard, s3: S3
) -> None:
    async with _early_behind_a_proxy(yard, s3) as (early, proxy):
        batch_id = await yard.plan(lines(12))
        claims = await yard.claim(batch_id)
        proxy.judge = lambda method, path: (
            Refusal(403, "AccessDenied") if method == "PUT" and "uploadId" in path else None
        )
        await _commit(yard, claims[:3], _answer)
        await eventually(lambda: proxy.refused > 0)
        await _commit(yard, claims[3:], _answer)
        proxy.judge = None

        await early.finaliser.finish(batch_id)

        assert _uploads(yard, s3) == []
        await _assert_is_what_is_made_at_the_end(yard, batch_id, 12)


async def test_one_file_grows_at_a_time_and_a_batch_that_ends_waits_for_none(
    yard: BatchYard, s3: S3
) -> None:
    async with _early_behind_a_proxy(yard, s3) as (early, proxy):
        slow_id, batch_id = [await yard.plan(lines(12)) for _ in range(2)]
        slow, claims = await yard.claim(slow_id), await yard.claim(batch_id)
        answers = threading.Event()

        def hold_back(method: str, path: str) -> None:
            if method == "GET" and slow_id in path:
                answers.wait(30)

        def has_read(id_: str) -> bool:
            return any(method == "GET" and id_ in path for method, path in proxy.tries)

        proxy.judge = hold_back
        await _commit(yard, slow[:3], _answer)
        await eventually(lambda: has_read(slow_id))
        await _commit(yard, claims[:3], _answer)
        with capture_logs() as logs:
            await eventually(lambda: any(one["event"] == "early_file.begun" for one in logs))
        # It would have read by then.
        await asyncio.sleep(0.3)
        assert not has_read(batch_id)

        await _commit(yard, claims[3:], _answer)
        await early.finaliser.finish(batch_id)
        await _assert_is_what_is_made_at_the_end(yard, batch_id, 12)

        answers.set()
        await _commit(yard, slow[3:], _answer)
        await early.finaliser.finish(slow_id)
        await _assert_is_what_is_made_at_the_end(yard, slow_id, 12)
        assert _uploads(yard, s3) == []


async def test_no_more_files_are_begun_than_are_allowed(
    yard: BatchYard, waits: list[str], s3: S3
) -> None:
    early = Early(yard.state, yard.storage, files_at_once=1)
    batch_ids = [await yard.plan(lines(12)) for _ in range(3)]
    claims = {batch_id: await yard.claim(batch_id) for batch_id in batch_ids}
    for batch_id in batch_ids:
        await _commit(yard, claims[batch_id][:3], _answer)
    for _ in range(3):
        await early.files.look()
    await eventually(lambda: len(waits) > 0)
    [key] = _uploads(yard, s3)
    [first] = [batch_id for batch_id in batch_ids if batch_id in key]
    await _commit(yard, claims[first][3:], _answer)

    await early.finaliser.finish(first)
    await eventually(lambda: len(_uploads(yard, s3)) == 1)

    assert first not in _uploads(yard, s3)[0]
    await early.stop()


async def test_batches_that_are_not_large_take_half_of_the_places_at_most(
    yard: BatchYard, waits: list[str], s3: S3
) -> None:
    """Many of them would keep a larger one from its file for hours."""
    early = Early(yard.state, yard.storage, files_at_once=2, worth_slices=2, large_bytes=_WORTH)
    small_ids = [await yard.plan(lines(12)) for _ in range(2)]
    for batch_id in small_ids:
        small_claims = await yard.claim(batch_id)
        await _commit(yard, small_claims[:2], _small_answer)
    for _ in range(3):
        await early.files.look()
    await eventually(lambda: len(waits) == 1)

    large_id = await yard.plan(lines(12))
    await _commit(yard, (await yard.claim(large_id))[:3], _answer)
    await eventually(lambda: any(large_id in key for key in _uploads(yard, s3)))

    await eventually(lambda: len(waits) > 1)
    await early.stop()


@pytest.mark.parametrize("noun", ["batches", "slices"])
async def test_a_batch_that_ends_while_it_is_looked_at_has_no_early_file(
    noun: str, yard: BatchYard, early: Early, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would take it, and it would be read beside the finaliser."""
    early.running.cancel()
    batch_id = await yard.plan(lines(12))
    claims = await yard.claim(batch_id)
    await _commit(yard, claims[:3], _answer)
    read_records, read_slices = yard.state.batches.many, yard.state.slices.some

    async def end() -> None:
        monkeypatch.undo()
        await _commit(yard, claims[3:], _answer)
        await early.finaliser.finish(batch_id)

    async def records_after_the_end(batch_ids: Sequence[str]) -> list[BatchRecord]:
        await end()
        return await read_records(batch_ids)

    async def slices_after_the_end(*place: Any) -> AsyncIterator[PlannedSlice]:
        await end()
        async for one in read_slices(*place):
            yield one

    if noun == "batches":
        monkeypatch.setattr(yard.state.batches, "many", records_after_the_end)
    else:
        monkeypatch.setattr(yard.state.slices, "some", slices_after_the_end)

    with capture_logs() as told:
        await early.files.look()

    assert (await yard.state.batches.get(batch_id)).status is Status.COMPLETED
    assert "early_file.begun" not in [one["event"] for one in told]


@pytest.mark.parametrize("kind", ["of one slice", "small", "open"])
async def test_some_batches_have_no_early_file(
    kind: str,
    yard: BatchYard,
    early: Early,
    waits: list[str],
    s3: S3,
    redis: "Redis[str]",
    namespace: str,
) -> None:
    batch_id = await yard.plan(lines(3 if kind == "of one slice" else 12))
    other = await yard.plan(lines(12))
    if kind == "open":
        # It has no end that a plan could tell.
        await redis.hset(f"{namespace}batch:{batch_id}", "open_model", "m")
    size = 1000 if kind == "small" else 4 * _MIB
    claims = await yard.claim(batch_id)
    await _commit(yard, claims[:3], lambda row: _answer(row, size=size))
    for _ in range(2):
        await early.files.look()
    await _commit(yard, (await yard.claim(other))[:3], _answer)

    await eventually(lambda: len(waits) > 0)

    assert other in "".join(_uploads(yard, s3))
    assert batch_id not in "".join(_uploads(yard, s3))


async def test_an_early_file_that_waits_keeps_nothing_in_memory_that_it_has_sent(
    yard: BatchYard, early: Early, waits: list[str]
) -> None:
    batch_id = await yard.plan(lines(12))
    claims = await yard.claim(batch_id)
    early.running.cancel()
    await _commit(yard, claims[:3], _large_parts)
    tracemalloc.start()
    try:
        await early.files.look()
        await eventually(lambda: len(waits) > 0)

        await eventually(lambda: tracemalloc.get_traced_memory()[0] < PART_BYTES, 20)

        assert tracemalloc.get_traced_memory()[1] > PART_BYTES
    finally:
        tracemalloc.stop()


async def _commit_doubled(yard: BatchYard, claim: Claim) -> None:
    """The slice's first row has two results, and its second has none."""
    rows = claim.slice.row_numbers
    body = assemble(
        claim.batch_id,
        claim.slice,
        [line(f"row-{row}") for row in rows],
        [_answer(row) for row in rows],
    )
    first, _, *others = body.output.splitlines(keepends=True)
    output = b"".join([first, first, *others])
    part = new_part(part_key(claim.batch_id, claim.index, claim.epoch), output, b"", body.usage)
    stored = await yard.storage.put(part.key, output)
    await yard.state.claims.commit(claim, part._replace(etag=stored.etag))
