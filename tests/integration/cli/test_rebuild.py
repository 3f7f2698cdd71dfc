"""`batchyard rebuild`: Redis emptied, or put back to an older state, and an S3 that knows all."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from redis.asyncio import Redis
from typer.testing import CliRunner

from cli import servers
from cli.__main__ import app
from cli.rebuild.rebuild import STRIDE, Rebuild
from dispatcher.finaliser import Finaliser
from dispatcher.leaving import let_leave
from dispatcher.reaper import Reaper
from dispatcher.row_span import SpanLimits
from shared import ids
from shared.catalog_file import load_catalog
from shared.errors import NotFoundError, SetupError, TransientError
from shared.input.request_lines import split
from shared.ledger.batch_records import record_key
from shared.ledger.changes import save_changes
from shared.ledger.commits import Commit, cancel, create_commit, fail
from shared.ledger.copies import copies_prefix
from shared.ledger.keys import change_key, create_key, revoke_key
from shared.ledger.manifests import manifest_key
from shared.ledger.packs import PACKS, PackedBatch, pack, pack_prefix, placed, read_manifest
from shared.ledger.tenants import change_tenant, tenant_key
from shared.ledger.webhook_endpoints import remove_webhook, save_webhook
from shared.lifecycle import FINAL, Event, Status
from shared.scopes import Scope
from shared.slices import Claim, Part, SliceUsage
from shared.state import BatchRecord, FileRecord, Rate, State
from shared.state.state import NAMESPACE
from shared.storage import Storage, Stored
from shared.submission.accept import accept
from shared.submission.admission import NewBatchCall, NewBatchQuota
from shared.tenants import EVERY_TENANT, TenantSettings
from tests.batches import JOB
from tests.chaos.points import REBUILD_POINTS
from tests.eventually import eventually
from tests.integration.cli.yards import TENANT, Yards, empty, pack_up, yards_in
from tests.integration.dispatcher.conftest import (
    SMALL_ENGINES,
    a_planner,
    good,
    lines,
    shuffled,
)
from tests.manifests import a_manifest, inline, today
from tests.repeated_scripts import repeating
from tests.servers import S3
from worker.outcomes import Outcome, SliceResult
from worker.rows import assemble
from worker.slice_io import fetch, settle

T = TypeVar("T")

ENDED, RUNNING = 180, 20
_ENDPOINT = {
    "name": "n",
    "url": "https://example.com/",
    "event_types": "batch.completed",
    "secret": "whsec_s",
    "hint": "h",
}
_AT_ONCE = 16
#: What no rebuild can know, or need know: of the moment, or numbers that go on higher.
_PASSING = {"sequence", "progress_ms", "plan", "started_at", "first_result_at"}


@pytest.fixture(autouse=True)
def _no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENDPOINT", "ACCESS_KEY", "SECRET_KEY", "BUCKET"):
        monkeypatch.delenv(f"BATCHYARD_S3_{name}", raising=False)


@pytest.fixture
def state(own_state: State) -> State:
    """On a Redis that the test may empty."""
    return own_state


@pytest.fixture
def yards(state: State, storage: Storage, tmp_path: Path) -> Yards:
    return yards_in(tmp_path, state, storage)


def _copy(redis_server: servers.Redis, tmp_path: Path) -> Path:
    """What Redis has on its disk by now, which is all that it has answered."""
    return Path(shutil.copytree(tmp_path / "redis", tmp_path / "copy" / "redis"))


def _put_back(redis_server: servers.Redis, copy: Path, tmp_path: Path) -> None:
    redis_server.kill()
    shutil.rmtree(tmp_path / "redis" / "appendonlydir")
    shutil.copytree(copy / "appendonlydir", tmp_path / "redis" / "appendonlydir")
    redis_server.start()


async def _rebuild(yards: Yards) -> Rebuild:
    rebuild = Rebuild(yards.state, yards.storage, progress=lambda *_: None)
    await rebuild.run()
    return rebuild


async def _all(work: Iterable[Awaitable[T]]) -> list[T]:
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(awaitable: Awaitable[T]) -> T:
        async with room:
            return await awaitable

    return await asyncio.gather(*map(one, work))


async def _populate(yards: Yards, between: Callable[[], None]) -> list[str]:
    """ENDED and RUNNING batches of every kind; `between` is called when half of it has happened."""
    half = ENDED // 2
    batch_ids = await _all(yards.complete(f"e{number}") for number in range(half))
    early = [
        await yards.start(f"r{number}", 9, priority=number % 10) for number in range(RUNNING // 2)
    ]
    for number, batch_id in enumerate(early):
        await yards.commit_some(batch_id, number % 2)
    between()
    for number, batch_id in enumerate(early):
        # What was claimed at that time comes to its end in the one that is lost.
        if number % 3 == 0:
            await _commit_rest(yards, batch_id)
    await cancel(yards.state, yards.storage, early[1])
    batch_ids += await _all(yards.complete(f"e{number}") for number in range(half, ENDED))
    late = [await yards.start(f"r{number}", 9) for number in range(RUNNING // 2, RUNNING - 2)]
    for number, batch_id in enumerate(late):
        await yards.commit_some(batch_id, number % 3)
    waiting = [await yards.submit(f"r{number}", 9) for number in range(RUNNING - 2, RUNNING)]
    await yards.state.controls.pause(late[0])
    await save_changes(yards.state, yards.storage, late[0])
    return [*batch_ids, *early, *late, *waiting]


async def _commit_rest(yards: Yards, batch_id: str) -> None:
    mine = [claim for claim in yards.claims if claim.batch_id == batch_id]
    for claim in mine:
        await yards.yard.commit(claim, [good(f"{row}") for row in claim.slice.row_numbers])
        yards.claims.remove(claim)


# Hundreds of batches go their whole way first, which takes minutes on a busy machine.
@pytest.mark.timeout(600)
@pytest.mark.parametrize("variant", ["emptied", "put back"])
async def test_a_lost_index_is_made_again(
    variant: str, yards: Yards, redis_server: servers.Redis, tmp_path: Path
) -> None:
    copies: list[Path] = []
    batch_ids = await _populate(yards, lambda: copies.append(_copy(redis_server, tmp_path)))
    before = {batch_id: await yards.record(batch_id) for batch_id in batch_ids}
    parts = {batch_id: await yards.state.slices.parts(batch_id) for batch_id in batch_ids}
    sent = {(event["batch"], event["sequence"]): event for event in await yards.hear()}
    files = await _files(yards.state)
    queue = await _queue(redis_server)
    running = [one for one in batch_ids if Status(before[one]["status"]) not in FINAL]
    assert len(batch_ids) - len(running) == ENDED
    if variant == "emptied":
        await empty(redis_server)
    else:
        _put_back(redis_server, copies[0], tmp_path)

    rebuild = await _rebuild(yards)

    # Nothing is lost, and no status is taken back.
    after = {batch_id: await yards.record(batch_id) for batch_id in batch_ids}
    assert {one: _lasting(after[one]) for one in batch_ids} == {
        one: _lasting(before[one]) for one in batch_ids
    }
    assert await _listed(yards.state) == set(batch_ids)
    assert await _files(yards.state) == files
    assert await _queue(redis_server) == queue
    assert rebuild.counts["batches"] == len(batch_ids)
    assert rebuild.problems == []
    if variant == "emptied":
        assert rebuild.counts["files_made"] == len(batch_ids)
    # What was committed stays so.
    for batch_id in running:
        assert await yards.state.slices.parts(batch_id) == parts[batch_id]
    # An event that is sent again says the same, and each end is sent again.
    again = await yards.hear()
    for event in again:
        if first := sent.get((event["batch"], event["sequence"])):
            assert _said(event) == _said(first)
        else:
            assert int(event["sequence"]) > STRIDE
    ends = {one["batch"] for one in again if one["type"].removeprefix("batch.") in FINAL}
    assert ends == set(batch_ids) - set(running)
    # Who still runs a slice comes too late.
    for claim in yards.claims:
        assert await _late_commit(yards, claim) in ("fenced", "closed")
    # A message that comes again meets its batch.
    manifest = await read_manifest(yards.storage, batch_ids[0])
    assert (await accept(yards.state, yards.storage, manifest)).is_duplicate
    await _run_to_the_end(yards, running, parts)
    assert await _queue(redis_server) == {}


async def _run_to_the_end(
    yards: Yards, running: list[str], parts: Mapping[str, Mapping[int, object]]
) -> None:
    """Everything ends as it should, and only what had no result is run."""
    for batch_id in running:
        await yards.yard.planner.plan(batch_id)
        record = await yards.state.batches.get(batch_id)
        if "paused" in record.fields and record.status is Status.IN_PROGRESS:
            await yards.state.controls.resume(batch_id)
    for batch_id in running:
        if (await yards.state.batches.get(batch_id)).status is not Status.IN_PROGRESS:
            continue
        claims = await yards.yard.claim(batch_id)
        assert not {claim.index for claim in claims} & parts[batch_id].keys()
        for claim in claims:
            assert claim.epoch > STRIDE or not parts[batch_id]
            await yards.yard.commit(claim, [good("late") for _ in claim.slice.row_numbers])
    for batch_id in running:
        await yards.yard.finaliser.finish(batch_id)
        record = await yards.state.batches.get(batch_id)
        assert record.status in FINAL
        assert record.number("completed") + record.number("failed") == record.number("total")


def _lasting(record: Mapping[str, str]) -> dict[str, str]:
    """Without the time of the moment in which the rows were found to be all there."""
    return {name: text for name, text in record.items() if name != "finalizing_at"}


def _said(event: Mapping[str, Any]) -> tuple[object, ...]:
    return event["type"], event["at_ms"], json.loads(event["snapshot"])


async def _late_commit(yards: Yards, claim: Claim) -> str:
    part = Part("late", "e", 1, 0, claim.slice.rows, SliceUsage(claim.slice.rows))
    return await yards.state.claims.commit(claim, part)


async def _listed(state: State) -> set[str]:
    found: list[BatchRecord] = []
    has_more = True
    while has_more:
        after = found[-1].id if found else None
        page, has_more = await state.batches.page(TENANT, after=after, limit=100)
        found += page
    assert len({record.id for record in found}) == len(found)
    return {record.id for record in found}


async def _files(state: State) -> dict[str, FileRecord]:
    found: list[FileRecord] = []
    has_more = True
    while has_more:
        after = found[-1].id if found else None
        page, has_more = await state.files.page(TENANT, after=after, limit=100)
        found += page
    return {file.id: file for file in found}


async def _queue(redis_server: servers.Redis) -> dict[str, str]:
    """What the tenant's running batches hold."""
    redis: Redis[str] = Redis.from_url(redis_server.url, decode_responses=True)
    try:
        held: dict[str, str] = await redis.hgetall(f"{NAMESPACE}enqueued:{TENANT}")
        return held
    finally:
        await redis.aclose()


async def test_a_second_run_changes_nothing(yards: Yards, redis_server: servers.Redis) -> None:
    ended, running = await yards.complete("ended"), await yards.start("running", 9)
    await yards.commit_some(running, 1)
    await empty(redis_server)
    await _rebuild(yards)
    before = [await yards.record(one) for one in (ended, running)]
    await yards.hear()

    again = await _rebuild(yards)

    assert [await yards.record(one) for one in (ended, running)] == before
    assert await yards.hear() == []
    assert (again.counts["batches_ended"], again.counts["batches_kept"]) == (0, 1)


_DYING = """
import asyncio, sys
from cli.rebuild.rebuild import Rebuild
from shared.state import State
from shared.storage import Storage, Stored

async def run(url, *place):
    await Rebuild(State(url), Storage(*place), progress=lambda *_: None).run()

asyncio.run(run(*sys.argv[1:]))
"""


async def test_killed_anywhere_it_is_run_again_and_nobody_sees_the_half_of_it(
    yards: Yards, redis_server: servers.Redis, s3: S3
) -> None:
    ended, running = await yards.complete("ended"), await yards.start("running", 9)
    await yards.commit_some(running, 1)
    before = [await yards.record(one) for one in (ended, running)]
    sent = {(event["batch"], event["sequence"]): event for event in await yards.hear()}
    key = await create_key(yards.state, yards.storage, TENANT)
    await empty(redis_server)

    for point in REBUILD_POINTS:
        died = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", _DYING, redis_server.url, *s3, yards.storage.bucket],
            env={**os.environ, "BATCHYARD_CRASH_AT": point},
            check=False,
        )
        assert died.returncode == -9, point
        assert await yards.state.restore.is_under_way()
        assert await yards.state.lease("dispatcher", "x", seconds=1).hold() == 0
        with pytest.raises(TransientError, match="being rebuilt"):
            await yards.state.keys.admit(key, [Rate("requests", 10, 60)])
    await _rebuild(yards)

    assert [await yards.record(one) for one in (ended, running)] == before
    for event in await yards.hear():
        first = sent.get((event["batch"], event["sequence"]))
        assert first is None or _said(first) == _said(event)
    assert await yards.state.lease("dispatcher", "x", seconds=1).hold() > 0
    assert await yards.state.keys.admit(key, [Rate("requests", 10, 60)]) is not None


async def test_it_waits_until_nobody_leads(yards: Yards) -> None:
    leader = yards.state.lease("dispatcher", "x", seconds=60)
    await leader.hold()

    rebuilding = asyncio.create_task(_rebuild(yards))
    await eventually(yards.state.restore.is_under_way)
    can_renew = await leader.hold()
    await leader.release()
    await rebuilding

    assert can_renew == 0


class _Interrupted(Storage):
    """Lets something happen once when a rebuild has listed all that there is of a batch."""

    meanwhile: Callable[[], Awaitable[None]] | None = None

    async def label(self, key: str) -> str:
        if (meanwhile := self.meanwhile) is not None:
            self.meanwhile = None
            await meanwhile()
        return await super().label(key)


class _Slow(Storage):
    """Lets something happen before it creates anything."""

    first: Callable[[], Awaitable[object]]

    async def create(self, key: str, body: bytes) -> bool:
        await self.first()
        return await super().create(key, body)


async def _rebuild_with(yards: Yards, s3: S3, meanwhile: Callable[[], Awaitable[None]]) -> None:
    """Rebuild; `meanwhile` is called when the parts of the first batch have been listed."""
    storage = _Interrupted(*s3, yards.storage.bucket)
    storage.meanwhile = meanwhile
    await Rebuild(yards.state, storage, progress=lambda *_: None).run()
    assert storage.meanwhile is None
    storage.close()


async def _half_done(yards: Yards, redis_server: servers.Redis, tmp_path: Path) -> str:
    """A running batch with one of three parts in S3 and, as Redis is older, none there."""
    running = await yards.start("running", 9)
    await yards.commit_some(running, 0)
    copy = _copy(redis_server, tmp_path)
    first = yards.claims.pop(0)
    await yards.yard.commit(first, [good("kept") for _ in first.slice.row_numbers])
    _put_back(redis_server, copy, tmp_path)
    return running


async def test_a_lane_job_that_works_on_meanwhile_strands_nothing(
    yards: Yards, redis_server: servers.Redis, s3: S3, tmp_path: Path
) -> None:
    running = await _half_done(yards, redis_server, tmp_path)

    async def work_on() -> None:
        with pytest.raises(TransientError, match="being rebuilt"):
            await yards.yard.commit(
                yards.claims[0], [good("late") for _ in yards.claims[0].slice.row_numbers]
            )
        for job in ("", JOB):
            with pytest.raises(TransientError, match="being rebuilt"):
                await yards.state.claims.take("m@gpu", job, lease_seconds=60, slices=9, rows=99)

    await _rebuild_with(yards, s3, work_on)

    for claim in yards.claims:
        assert await _late_commit(yards, claim) == "fenced"
    parts = {running: await yards.state.slices.parts(running)}
    assert list(parts[running]) == [0]
    await _run_to_the_end(yards, [running], parts)
    assert (await yards.state.batches.get(running)).status is Status.COMPLETED


async def test_a_slice_among_the_suspects_stands_in_one_place_afterwards(
    yards: Yards, redis_server: servers.Redis, tmp_path: Path
) -> None:
    running = await _half_done(yards, redis_server, tmp_path)
    await yards.state.claims.release(yards.claims[0], strikes=1)
    assert await yards.state.lanes.suspects_count("m@gpu") == 1

    await _rebuild(yards)

    assert await yards.state.lanes.suspects_count("m@gpu") == 0
    await _run_to_the_end(yards, [running], {running: await yards.state.slices.parts(running)})


async def test_a_batch_whose_restoring_is_repeated_keeps_its_slices(yards: Yards) -> None:
    running = await yards.start("running", 9)
    await yards.commit_some(running, 1)

    with repeating("restore_batch"):
        await _rebuild(yards)

    await _run_to_the_end(yards, [running], {running: await yards.state.slices.parts(running)})


async def test_what_a_broken_run_has_answered_is_still_kept_afterwards(yards: Yards) -> None:
    running = await yards.start("running", 9)
    await yards.commit_some(running, 0)
    broken = yards.claims[0]
    fetched = await fetch(yards.storage, broken)
    assert isinstance(fetched.lines, bytes)
    results = [good(), None, good()]
    body = assemble(running, broken.slice, split(fetched.lines), results)
    await settle(yards.state, yards.storage, broken, SliceResult(Outcome.UNSEEN, body))

    await _rebuild(yards)

    first, *others = await yards.yard.claim(running)
    assert first.kept is not None
    assert (first.kept.rows, first.kept.usage) == (2, body.usage)
    assert [claim.kept for claim in others] == [None, None]


async def test_rows_in_groups_run_on_and_their_copies_are_swept_with_the_batch(
    yards: Yards, redis_server: servers.Redis, tmp_path: Path
) -> None:
    (tmp_path / "small.yaml").write_text(SMALL_ENGINES)
    catalog = load_catalog(tmp_path / "small.yaml")
    planner = a_planner(yards.state, yards.storage, catalog, spans=SpanLimits(rows=40))
    grouped = await yards.submit("grouped", 0, body=shuffled(prefixes=10, rows=4))
    await planner.plan(grouped)
    slices = await yards.yard.slices(grouped)
    assert any(slice_.copy for slice_ in slices)
    await yards.commit_some(grouped, 2)
    await empty(redis_server)

    await _rebuild(yards)

    assert await yards.yard.slices(grouped) == slices
    redis: Redis[str] = Redis.from_url(redis_server.url)
    assert await redis.zscore(f"{NAMESPACE}garbage", copies_prefix(grouped)) is not None
    await redis.aclose()
    for claim in await yards.yard.claim(grouped):
        await yards.yard.commit(claim, [good(f"{row}") for row in claim.slice.row_numbers])
    await yards.yard.finaliser.finish(grouped)
    ended = (await yards.state.batches.get(grouped)).to_openai()
    results = await yards.yard.parsed(ended.output_file_id)
    assert [result["custom_id"] for result in results] == [f"row-{row}" for row in range(40)]


async def test_what_a_client_asks_for_meanwhile_is_refused_rather_than_undone(
    yards: Yards, redis_server: servers.Redis, s3: S3, tmp_path: Path
) -> None:
    state, storage = yards.state, yards.storage
    running = await _half_done(yards, redis_server, tmp_path)
    file = await yards.upload("file-other", b"x")
    own = (await state.batches.get(running)).fields["input_file_id"]
    changes: dict[str, Callable[[], Awaitable[object]]] = {
        "cancel": lambda: cancel(state, storage, running),
        "pause": lambda: state.controls.pause(running),
        "amend": lambda: state.controls.amend(running, priority=9),
        "delete": lambda: state.files.delete(TENANT, file.id),
        "list": lambda: state.batches.page(TENANT, after=None, limit=1),
        # Many in one round trip are refused in other words.
        "reserve": lambda: NewBatchQuota(yards.catalog, 9, 9, 9).reserve_all(
            state, [NewBatchCall(TENANT, "batch_new", "/v1/chat/completions")]
        ),
    }

    async def ask() -> None:
        for change in changes.values():
            with pytest.raises(TransientError, match="being rebuilt"):
                await change()
        # What is in S3 already is the same before and after.
        await accept(state, storage, await read_manifest(storage, running))

    await _rebuild_with(yards, s3, ask)

    record = await state.batches.get(running)
    assert record.status is Status.IN_PROGRESS
    assert not record.fields.keys() & {"paused", "cancelling_at"}
    assert {file.id, own} <= (await _files(state)).keys()
    await cancel(state, storage, running)
    await empty(redis_server)
    await _rebuild(yards)
    assert (await state.batches.get(running)).status is Status.CANCELLING


async def test_a_change_whose_other_half_comes_too_late_is_to_be_asked_for_again(
    yards: Yards, redis_server: servers.Redis, s3: S3, tmp_path: Path
) -> None:
    state, storage = yards.state, yards.storage
    running = await _half_done(yards, redis_server, tmp_path)
    # Redis has the change, and S3 does not.
    await state.controls.pause(running)
    await state.webhooks.create(TENANT, "we_1", _ENDPOINT, max_endpoints=9)

    async def write() -> None:
        for late in (
            save_changes(state, storage, running),
            save_webhook(state, storage, TENANT, "we_1"),
        ):
            with pytest.raises(TransientError, match="being rebuilt"):
                await late

    await _rebuild_with(yards, s3, write)


async def test_a_cancellation_that_a_whole_rebuild_overtook_is_to_be_asked_for_again(
    yards: Yards, redis_server: servers.Redis, s3: S3, tmp_path: Path
) -> None:
    running = await _half_done(yards, redis_server, tmp_path)
    slow = _Slow(*s3, yards.storage.bucket)
    slow.first = lambda: _rebuild(yards)

    with pytest.raises(TransientError, match="undone"):
        await cancel(yards.state, slow, running)

    assert (await yards.state.batches.get(running)).status is Status.IN_PROGRESS
    await cancel(yards.state, yards.storage, running)
    assert (await yards.state.batches.get(running)).status is Status.CANCELLING
    slow.close()


class _Late(Storage):
    """Lets something happen when a result has been written."""

    then: Callable[[], Awaitable[object]]

    async def upload(
        self, key: str, chunks: AsyncIterator[bytes], *, parts_at_once: int = 1
    ) -> Stored:
        stored = await super().upload(key, chunks, parts_at_once=parts_at_once)
        await self.then()
        return stored


@pytest.mark.parametrize("is_begun", [True, False])
async def test_a_finaliser_that_comes_from_before_writes_down_no_end_from_an_older_record(
    is_begun: bool,
    yards: Yards,
    redis_server: servers.Redis,
    s3: S3,
    tmp_path: Path,
) -> None:
    batch_id = await yards.submit("frozen", 9)
    copy = _copy(redis_server, tmp_path)
    await yards.yard.planner.plan(batch_id)
    await yards.yard.run(batch_id, lambda row: good(f"{row}"))

    async def lose() -> None:
        _put_back(redis_server, copy, tmp_path)
        if is_begun:
            await yards.state.restore.begin()

    late = _Late(*s3, yards.storage.bucket)
    late.then = lose
    with suppress(TransientError):
        await Finaliser(yards.state, late, output_seconds=3600).finish(batch_id)
    late.close()

    commits = [key for key in await yards.storage.keys(f"batches/{batch_id}/") if "/commit-" in key]
    assert commits == []
    await _rebuild(yards)
    await yards.yard.finaliser.finish(batch_id)
    record = await yards.state.batches.get(batch_id)
    assert (record.status, record.number("completed")) == (Status.COMPLETED, 9)
    file = await yards.state.files.get(TENANT, record.fields["output_file_id"])
    assert file.created_at == record.number("finalizing_at")


async def test_a_pack_that_was_on_its_way_is_found_as_well(
    yards: Yards, redis_server: servers.Redis, s3: S3, tmp_path: Path
) -> None:
    running = await _half_done(yards, redis_server, tmp_path)
    [before] = await pack_up(yards, "before")
    late = inline("late", lines(9), fingerprint="print of late")

    async def arrive() -> None:
        prefix = pack_prefix()
        [(manifest, body)] = placed(prefix, yards.storage.bucket, [(late.manifest, late.body)])
        await yards.storage.put(manifest.key, pack([body], [PackedBatch(manifest)]))

    await _rebuild_with(yards, s3, arrive)

    statuses = await yards.state.batches.statuses([running, before, late.manifest.id])
    assert list(statuses.values()) == [*[Status.IN_PROGRESS] * 2, Status.VALIDATING]
    assert list(await yards.state.slices.parts(running)) == [0]


async def test_a_batch_that_was_written_and_never_answered_is_created_once(yards: Yards) -> None:
    file = await yards.upload("file-in", lines(3))
    manifest = a_manifest(
        "untold",
        fingerprint="print",
        input_file_id=file.id,
        bucket=file.bucket,
        key=file.key,
        etag=file.etag,
        size=file.bytes,
        **today(),
    )
    # As a gateway leaves it that dies before Redis knows.
    await yards.storage.put(manifest_key(manifest.id), msgspec.json.encode(manifest))

    await _rebuild(yards)

    assert (await yards.state.batches.get(manifest.id)).status is Status.VALIDATING
    assert (await accept(yards.state, yards.storage, manifest)).is_duplicate


async def test_failures_and_cancellations_stay_what_they_were(
    yards: Yards, redis_server: servers.Redis
) -> None:
    refused = await yards.start("refused", 0, body=b"no JSON\n")
    failed = await yards.start("failed", 3)
    problem = {"errors": "[]", "first_error": "out of memory"}
    await fail(yards.state, yards.storage, failed, Event.LANE_FAILED, problem)
    cancelled = await yards.start("cancelled", 3)
    await cancel(yards.state, yards.storage, cancelled)
    await yards.yard.finaliser.finish(cancelled)
    unplanned = await yards.submit("unplanned", 3)
    await cancel(yards.state, yards.storage, unplanned)
    # Its output lay ready when the cancellation came.
    late = await yards.start("late", 3)
    await yards.yard.run(late, lambda _: good())
    record, pin = await yards.state.batches.pinned(late)
    commit = Commit(
        batch_id=late, event="output_committed", record=record.fields, fields={}, **pin._asdict()
    )
    await create_commit(yards.storage, commit)
    await cancel(yards.state, yards.storage, late)
    batch_ids = [refused, failed, cancelled, unplanned, late]
    before = [await yards.record(one) for one in batch_ids]
    await empty(redis_server)

    await _rebuild(yards)

    after = [await yards.record(one) for one in batch_ids]
    assert list(map(_lasting, after)) == list(map(_lasting, before))
    assert [one["status"] for one in after] == [
        "failed",
        "failed",
        "cancelled",
        "cancelling",
        "cancelling",
    ]


async def test_batches_in_packs_are_made_again_with_their_plans(
    yards: Yards, redis_server: servers.Redis
) -> None:
    started, waiting, ended = await pack_up(yards, "started", "waiting", "ended")
    await yards.commit_some(started, 1)
    await yards.yard.run(ended, lambda _: good())
    await yards.yard.finaliser.finish(ended)
    batch_ids = [started, waiting, ended]
    before = [await yards.record(one) for one in batch_ids]
    parts = await yards.state.slices.parts(started)
    sent = {(event["batch"], event["sequence"]): event for event in await yards.hear()}
    await empty(redis_server)

    rebuild = await _rebuild(yards)

    assert [await yards.record(one) for one in batch_ids] == before
    assert await yards.state.slices.parts(started) == parts
    assert rebuild.counts["batches"] == 3
    for event in await yards.hear():
        first = sent.get((event["batch"], event["sequence"]))
        assert first is None or _said(first) == _said(event)


async def test_a_pack_whose_batches_another_pack_made_is_swept_once_its_inputs_are_no_files(
    yards: Yards, redis_server: servers.Redis
) -> None:
    started, ended = await pack_up(yards, "started", "ended")
    await yards.yard.run(ended, lambda _: good())
    await yards.yard.finaliser.finish(ended)
    mine, other = (inline(name, lines(9), file_seconds=1000) for name in ("ended", "other"))
    # As dispatchers leave them that got the message, too: before, after, and with one of its own.
    for prefix, some in (("00-a/", [mine]), ("ff-b/", [mine]), ("ff-c/", [mine, other])):
        given = [(one.manifest, one.body) for one in some]
        at = placed(f"{PACKS}{prefix}", yards.storage.bucket, given)
        body = pack([body for _, body in at], [PackedBatch(manifest) for manifest, _ in at])
        await yards.storage.put(at[0][0].key, body)
    await empty(redis_server)

    await _rebuild(yards)

    redis: Redis[str] = Redis.from_url(redis_server.url, decode_responses=True)
    entries = await redis.zrange(f"{NAMESPACE}garbage", 0, -1, withscores=True)
    await redis.aclose()
    due = {key: when for key, when in entries if key.startswith(PACKS) and key.endswith("/")}
    assert due.keys() == {f"{PACKS}00-a/", f"{PACKS}ff-b/"}
    assert min(due.values()) > time.time() + 900
    for batch_id in (started, ended, other.manifest.id):
        assert (await yards.state.batches.get(batch_id)).fields["key"] not in due


async def test_a_window_that_closed_meanwhile_ends_the_batch_with_what_it_has(
    yards: Yards, redis_server: servers.Redis
) -> None:
    batch_id = await yards.submit("late", 9)
    await yards.yard.planner.plan(batch_id)
    await yards.commit_some(batch_id, 1)
    manifest = await read_manifest(yards.storage, batch_id)
    closed = msgspec.structs.replace(manifest, expires_at=int(time.time()) - 1)
    await yards.storage.put(manifest_key(batch_id), msgspec.json.encode(closed))
    await empty(redis_server)

    await _rebuild(yards)

    await yards.yard.finaliser.finish(batch_id)
    record = await yards.state.batches.get(batch_id)
    assert record.status is Status.EXPIRED
    assert (record.number("completed"), record.number("failed")) == (3, 6)


async def test_what_a_client_changed_is_not_taken_back(
    yards: Yards, redis_server: servers.Redis
) -> None:
    running, ended = await yards.start("running", 9), await yards.complete("ended")
    for batch_id in (running, ended):
        await yards.state.controls.amend(batch_id, metadata='{"a": "b"}')
        await save_changes(yards.state, yards.storage, batch_id)
    await yards.state.controls.amend(running, priority=9)
    await save_changes(yards.state, yards.storage, running)
    sent = {(event["batch"], event["sequence"]): event for event in await yards.hear()}
    before = [await yards.record(one) for one in (running, ended)]
    await empty(redis_server)

    await _rebuild(yards)

    assert [await yards.record(one) for one in (running, ended)] == before
    again = await yards.hear()
    assert {event["batch"] for event in again} == {running, ended}
    for event in again:
        first = sent.get((event["batch"], event["sequence"]))
        assert int(event["sequence"]) > STRIDE or _said(first or {}) == _said(event)


async def test_batches_that_have_left_an_older_redis_are_not_counted_again(yards: Yards) -> None:
    ended, lost = await yards.complete("ended"), await yards.complete("lost")
    await yards.state.controls.amend(ended, metadata='{"a": "b"}')
    await save_changes(yards.state, yards.storage, ended)
    before = [await yards.record(one) for one in (ended, lost)]
    counts = await yards.state.census.take()
    await let_leave(yards.state, yards.storage, seconds=-1)
    # All that is left of this one is its commit.
    await yards.storage.remove([record_key(lost, 0)])

    rebuild = await _rebuild(yards)

    assert rebuild.counts["batches_kept"] == 2
    assert [await yards.record(one) for one in (ended, lost)] == before
    assert (await yards.state.census.take()).ended == counts.ended
    # What happens to them from now on has numbers that were never used.
    for batch_id in (ended, lost):
        assert (await yards.state.batches.get(batch_id)).number("sequence") >= STRIDE
    await let_leave(yards.state, yards.storage, seconds=-1)
    assert [await yards.record(one) for one in (ended, lost)] == before


async def test_keys_and_endpoints_come_back_and_what_was_revoked_or_deleted_does_not(
    yards: Yards, redis_server: servers.Redis, tmp_path: Path
) -> None:
    state, storage = yards.state, yards.storage
    good_key, bad_key = [await create_key(state, storage, TENANT, name="n") for _ in range(2)]
    await _endpoint(yards, "we_kept")
    await _endpoint(yards, "we_deleted")
    await change_tenant(state, storage, TENANT, {"event_streams": 3, "models": ("m",)})
    await change_tenant(state, storage, "globex", {"event_streams": 4})
    copy = _copy(redis_server, tmp_path)
    await revoke_key(state, storage, ids.api_key_id(ids.api_key_digest(bad_key)))
    await remove_webhook(storage, TENANT, "we_deleted")
    await state.webhooks.delete(TENANT, "we_deleted")
    late_key = await create_key(state, storage, TENANT, scopes=(Scope.READ,))
    good_id = ids.api_key_id(ids.api_key_digest(good_key))
    in_2100 = 4_102_444_800
    await change_key(state, storage, good_id, expires_at=in_2100, scopes=(Scope.SUBMIT,))
    await change_tenant(state, storage, TENANT, {"weight": 2.0}, ("models",))
    await storage.remove([tenant_key("globex")])
    await change_tenant(state, storage, EVERY_TENANT, {"event_streams": 5})
    records, fields = await state.keys.all(), await state.webhooks.fields("we_kept")

    for lose in (lambda: _put_back(redis_server, copy, tmp_path), None):
        if lose is None:
            await empty(redis_server)
        else:
            lose()
        await _rebuild(yards)

        assert [await state.keys.tenant(key) for key in (good_key, bad_key, late_key)] == [
            TENANT,
            None,
            TENANT,
        ]
        assert await state.keys.all() == records
        assert await state.tenants.all() == {
            TENANT: TenantSettings(event_streams=3, weight=2.0),
            EVERY_TENANT: TenantSettings(event_streams=5),
        }
        assert await state.webhooks.fields("we_kept") == fields
        [only], _ = await state.webhooks.page(TENANT, after=None, limit=10)
        assert only.id == "we_kept"


async def test_stored_bytes_are_counted_again(
    yards: Yards, redis_server: servers.Redis, tmp_path: Path
) -> None:
    deleted = await yards.upload("file-deleted", lines(1))
    await yards.complete("ended")
    copy = _copy(redis_server, tmp_path)
    await yards.storage.remove([deleted.record_key])
    await yards.state.files.delete(TENANT, deleted.id)
    await yards.start("running", 4)
    [packed] = await pack_up(yards, "packed")
    stored = await yards.state.files.stored_bytes(TENANT)
    assert packed
    assert stored == sum(file.bytes for file in (await _files(yards.state)).values())

    for lose in (lambda: _put_back(redis_server, copy, tmp_path), None):
        if lose is None:
            await empty(redis_server)
        else:
            lose()
        await _rebuild(yards)

        assert await yards.state.files.stored_bytes(TENANT) == stored


async def _endpoint(yards: Yards, endpoint_id: str) -> None:
    await yards.state.webhooks.create(TENANT, endpoint_id, _ENDPOINT, max_endpoints=9)
    await save_webhook(yards.state, yards.storage, TENANT, endpoint_id)


async def test_an_end_is_delivered_again_under_the_same_id(
    yards: Yards, redis_server: servers.Redis
) -> None:
    await _endpoint(yards, "we_1")
    await yards.complete("ended")
    [before], _ = await yards.state.webhook_deliveries.claim(
        limit=9, per_endpoint=9, lease_seconds=9
    )
    await empty(redis_server)

    await _rebuild(yards)

    [after], _ = await yards.state.webhook_deliveries.claim(
        limit=9, per_endpoint=9, lease_seconds=9
    )
    assert (after.id, after.event, after.url) == (before.id, before.event, before.url)


async def test_deleted_files_stay_deleted_and_their_objects_are_swept(
    yards: Yards, redis_server: servers.Redis, tmp_path: Path
) -> None:
    state, storage = yards.state, yards.storage
    unread, read = [await yards.upload(f"file-{name}", b"x") for name in ("unread", "read")]
    ended, running = await yards.complete("ended"), await yards.start("running", 9)
    output = await state.files.get(TENANT, ids.output_file_id(ended, "output"))
    own = await state.files.get(TENANT, (await state.batches.get(running)).fields["input_file_id"])
    copy = _copy(redis_server, tmp_path)
    await storage.put(output.deleted_key, b"")
    for file in (unread, own):
        await storage.remove([file.record_key])
    for file in (unread, own, output):
        await state.files.delete(TENANT, file.id)

    for lose in (lambda: _put_back(redis_server, copy, tmp_path), None):
        if lose is None:
            await empty(redis_server)
        else:
            lose()
        await _rebuild(yards)

        assert set(await _files(state)) == {
            read.id,
            (await state.batches.get(ended)).fields["input_file_id"],
            ids.output_file_id(ended, "error"),
        }
    # What a batch still reads outlives its file.
    await Reaper(state, storage).sweep()
    assert await storage.get(own.key)
    with pytest.raises(NotFoundError):
        await storage.get(output.key)


async def test_the_command_prints_what_it_would_do_and_then_what_it_did(
    yards: Yards, redis_server: servers.Redis, s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, _ = await yards.complete("ended"), await yards.start("running", 9)
    record = await yards.record(ended)
    await empty(redis_server)
    environment = {
        "REDIS_URL": redis_server.url,
        "S3_ENDPOINT": s3.endpoint,
        "S3_ACCESS_KEY": s3.access_key,
        "S3_SECRET_KEY": s3.secret_key,
        "S3_BUCKET": yards.storage.bucket,
    }
    for name, text in environment.items():
        monkeypatch.setenv(f"BATCHYARD_{name}", text)

    counted = json.loads(await _command("--dry-run", "--json"))
    is_empty = not await yards.state.batches.exists(ended)
    done = json.loads(await _command("--json"))
    plain = await _command()

    assert is_empty
    for counts in (counted, done):
        assert (counts["batches"], counts["batches_ended"], counts["batches_running"]) == (2, 1, 1)
        assert counts["files_made"] == 2
    assert (counted["dry_run"], done["dry_run"]) == (True, False)
    assert await yards.record(ended) == record
    assert "1  had ended in Redis as well" in plain


async def test_one_rebuild_at_a_time(
    yards: Yards, redis_server: servers.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.rebuild.command._LEASE_SECONDS", 0.01)
    other = yards.state.lease("rebuild", "other", seconds=60)
    await other.hold()

    with pytest.raises(SetupError, match="Another rebuild"):
        await _command(
            "--redis-url",
            redis_server.url,
            "--s3-endpoint",
            "http://127.0.0.1:1",
            "--s3-access-key",
            "a",
            "--s3-secret-key",
            "b",
        )


async def _command(*arguments: str) -> str:
    result = await asyncio.to_thread(CliRunner().invoke, app, ["rebuild", *arguments])
    if result.exception is not None:
        raise result.exception
    return result.stdout
