"""After many batches, each key in Redis and each object in S3 has an owner and an end."""

import re
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from redis.asyncio import Redis

from cli.dead_letters.row_replays import replay
from dispatcher.packing import InlineBatch, Packer
from dispatcher.reaper import Reaper
from shared import ids
from shared.bus.connection import Bus
from shared.bus.relay import Relay
from shared.catalog import Catalog
from shared.errors import TransientError
from shared.lifecycle import FINAL, Event, Status
from shared.state import FileRecord, PackedAcceptance, PartRecord, State, UploadRecord
from shared.storage import READABLE
from shared.submission.accept import accept
from shared.submission.admission import NewBatchQuota
from tests.batches import JOB, LANE, dead_row
from tests.eventually import eventually
from tests.integration.dispatcher.conftest import (
    ROWS_A_SLICE,
    BatchYard,
    bad,
    good,
    lines,
)
from tests.manifests import a_manifest, inline, today
from tests.receiver import receiving
from tests.webhooks import an_endpoint, delivering

_LONG_AGO = 1
_TENANT = "acme"
#: Each batch has one of these for as long as it is known: they are the batch.
_EACH = {"record-0.json", "manifest.json", "0.jsonl", "commit.json"}
#: Of these there is a fixed number, of a tenant, a lane or the fleet.
_FIXED = {
    "batches", "changes", "ended", "endings", "lanes", "lane:cost", "lane:done", "lane:job",
    "lane:served", "lane:usage", "lane:usage-since", "outbox", "totals", "webhook", "webhooks",
}  # fmt: skip
#: Which of them there are for batches only.
_OF_BATCHES = {"batches", "changes", "endings"}


class Lives:
    """Batches from their input to their end, one life of each kind after the other."""

    def __init__(self, yard: BatchYard, catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
        self._yard = yard
        self._monkeypatch = monkeypatch
        quota = NewBatchQuota(catalog, batches_per_hour=9999, requests=9999, tokens=99_999)
        self._packer = Packer(yard.state, yard.storage, quota=quota, planner=None)

    def all(self) -> list[Callable[[], Awaitable[object]]]:
        """Each kind."""
        return [
            self.completed,
            self.completed_in_one_slice,
            self.refused,
            self.cancelled_before_its_plan,
            self.cancelled_while_it_runs,
            self.cancelled_while_it_is_finished,
            self.expired,
            self.lane_failed,
            self.input_lost,
            self.inline,
            self.inline_and_refused,
            self.of_an_upload,
            self.of_a_deleted_file,
            self.paused_and_claimed_again,
            self.of_a_row_that_killed_engines,
        ]

    async def completed(self) -> str:
        batch_id = await self._planned(2 * ROWS_A_SLICE)
        await self._yard.run(batch_id, lambda row: good() if row % 2 else bad())
        await self._finish(batch_id)
        return batch_id

    async def completed_in_one_slice(self) -> str:
        batch_id = await self._planned(1)
        await self._yard.run(batch_id, lambda row: good())
        await self._finish(batch_id)
        return batch_id

    async def refused(self) -> str:
        return await self._planned_with(b"{}\n")

    async def cancelled_before_its_plan(self) -> None:
        batch_id = await self._submitted(lines(1))
        await self._yard.state.apply(batch_id, Event.CANCEL_REQUESTED)
        await self._finish(batch_id)

    async def cancelled_while_it_runs(self) -> None:
        batch_id = await self._half_run()
        await self._yard.state.apply(batch_id, Event.CANCEL_REQUESTED)
        await self._finish(batch_id)

    async def cancelled_while_it_is_finished(self) -> None:
        """By a finaliser that has written everything when the cancellation comes."""
        state = self._yard.state
        batch_id = await self._planned(2 * ROWS_A_SLICE)
        await self._yard.run(batch_id, lambda row: good() if row % 2 else bad())
        conclude = state.conclude

        async def too_late(*args: Any, **kwargs: Any) -> bool:
            await state.apply(batch_id, Event.CANCEL_REQUESTED)
            return await conclude(*args, **kwargs)

        with self._monkeypatch.context() as patch:
            patch.setattr(state, "conclude", too_late)
            await self._yard.finaliser.finish(batch_id)
        await self._finish(batch_id)

    async def expired(self) -> None:
        batch_id = await self._half_run()
        await self._yard.state.apply(batch_id, Event.WINDOW_CLOSED, {"window_closed": 1})
        await self._finish(batch_id)

    async def lane_failed(self) -> None:
        """With a part that is there, and one that comes after the end."""
        state = self._yard.state
        batch_id = await self._planned(3 * ROWS_A_SLICE)
        first, second, third = await self._yard.claim(batch_id)
        await self._yard.commit(first, [good()] * ROWS_A_SLICE)
        await state.fail_lane(LANE, batch_id, "no engine", {"first_error": "no engine"})
        with pytest.raises(AssertionError):
            await self._yard.commit(second, [good()] * ROWS_A_SLICE)
        await state.claims.release(second)
        await state.claims.release(third, strikes=1)

    async def input_lost(self) -> None:
        batch_id = await self._planned(2 * ROWS_A_SLICE)
        first, second = await self._yard.claim(batch_id)
        await self._yard.commit(first, [good()] * ROWS_A_SLICE)
        await self._yard.state.apply(batch_id, Event.INPUT_LOST)
        await self._yard.state.claims.release(second)

    async def inline(self) -> None:
        batch = self._inline()
        await self._packer.make(batch)
        batch_id = batch.manifest.id
        await self._yard.planner.plan(batch_id)
        await self._yard.run(batch_id, lambda row: good())
        await self._finish(batch_id)

    async def inline_and_refused(self) -> None:
        """As where the intake dies, and the message is refused when it comes again."""

        async def gone(*_: object) -> list[PackedAcceptance]:
            raise TransientError("Redis is away.")

        with self._monkeypatch.context() as patch, pytest.raises(TransientError):
            patch.setattr(self._yard.state.batches, "accept_pack", gone)
            await self._packer.make(self._inline())

    async def of_an_upload(self) -> None:
        state, upload_id = self._yard.state, f"upload_{secrets.token_hex(12)}"
        now = int(time.time())
        upload = UploadRecord(upload_id, _TENANT, 1, now, now + 3600, "in.jsonl", "batch")
        await state.uploads.create(upload)
        stored = await self._yard.storage.put(f"{upload.prefix}part_1", b"x")
        part = PartRecord("part_1", stored.key, stored.etag, 1)
        await state.uploads.add_part(upload_id, part, max_bytes=9, max_parts=9)

    async def of_a_deleted_file(self) -> None:
        batch_id = await self._planned(1)
        file_id = (await self._yard.state.batches.get(batch_id)).fields["input_file_id"]
        await self._yard.storage.remove([f"files/{_TENANT}/{file_id}.json"])
        await self._yard.state.files.delete(_TENANT, file_id)
        await self._yard.run(batch_id, lambda row: good())
        await self._finish(batch_id)

    async def paused_and_claimed_again(self) -> None:
        state = self._yard.state
        batch_id = await self._planned(2 * ROWS_A_SLICE)
        for claim in await self._yard.claim(batch_id):
            await state.claims.release(claim, strikes=1)
        await state.controls.pause(batch_id)
        await state.controls.resume(batch_id)
        await self._yard.run(batch_id, lambda row: good())
        await self._finish(batch_id)

    async def of_a_row_that_killed_engines(self) -> None:
        """Run again, alone."""
        batch_id = await self._planned(1)
        [claim] = await self._yard.claim(batch_id)
        await self._yard.commit(claim, [bad()])
        await self._finish(batch_id)
        row = dead_row(claim)
        again = await replay(self._yard.state, self._yard.storage, row)
        assert again == await replay(self._yard.state, self._yard.storage, row)
        await self._yard.planner.plan(again)
        await self._yard.run(again, lambda row: good())
        await self._finish(again)

    async def _half_run(self) -> str:
        batch_id = await self._planned(2 * ROWS_A_SLICE)
        first, second = await self._yard.claim(batch_id)
        await self._yard.commit(first, [good()] * ROWS_A_SLICE)
        await self._yard.state.claims.release(second)
        return batch_id

    async def _finish(self, batch_id: str) -> None:
        await self._yard.finaliser.finish(batch_id)
        assert (await self._yard.state.batches.get(batch_id)).status in FINAL

    async def _planned(self, rows: int) -> str:
        batch_id = await self._planned_with(lines(rows))
        assert (await self._yard.state.batches.get(batch_id)).status is Status.IN_PROGRESS
        return batch_id

    async def _planned_with(self, body: bytes) -> str:
        batch_id = await self._submitted(body)
        await self._yard.planner.plan(batch_id)
        return batch_id

    async def _submitted(self, body: bytes) -> str:
        """As by HTTP: the file first, and then the batch."""
        state, storage = self._yard.state, self._yard.storage
        file_id, now = ids.new_file_id(), int(time.time())
        key = f"files/{_TENANT}/{file_id}"
        await state.files.reserve(key, f"{key}.json", seconds=3600)
        stored = await storage.put(key, body)
        file = FileRecord(
            id=file_id,
            tenant=_TENANT,
            bytes=len(body),
            created_at=now,
            expires_at=now + 3600,
            filename="in.jsonl",
            purpose="batch",
            bucket=storage.bucket,
            key=key,
            etag=stored.etag,
        )
        await storage.put(file.record_key, b"{}")
        assert await state.files.keep(file)
        manifest = a_manifest(
            _name(),
            input_file_id=file_id,
            bucket=storage.bucket,
            key=key,
            etag=stored.etag,
            size=len(body),
            **today(),
        )
        return (await accept(state, storage, manifest)).batch_id

    @staticmethod
    def _inline() -> InlineBatch:
        return inline(_name(), lines(1), file_seconds=3600)


@pytest.mark.parametrize(
    "batches", [30, pytest.param(1000, marks=[pytest.mark.on_demand, pytest.mark.timeout(1800)])]
)
async def test_after_many_batches_there_is_nothing_left_but_the_batches(
    batches: int,
    yard: BatchYard,
    catalog: Catalog,
    bus: Bus,
    amqp_url: str,
    redis: "Redis[str]",
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lives = Lives(yard, catalog, monkeypatch).all()
    async with receiving() as receiver, delivering(yard.state):
        endpoint = await an_endpoint(yard.state, receiver.url)
        counts = []
        # What there is for the first batch only is no leak.
        for more in (len(lives), batches):
            for number in range(more):
                await lives[number % len(lives)]()
            await _relay_all(yard.state, bus, amqp_url)
            await eventually(lambda: _is_delivered(redis, namespace, endpoint.id), 60)
            await _let_a_month_pass(yard, redis, namespace)
            counts.append(await _count(yard, redis, namespace))

    before, after = counts
    ended = await redis.zcard(f"{namespace}batches:{_TENANT}")
    assert set(after) == _EACH | _FIXED
    assert {name: after[name] for name in _FIXED} == {name: before[name] for name in _FIXED}
    assert after["record-0.json"] == after["manifest.json"] + after["0.jsonl"] == ended
    assert after["commit.json"] < ended

    await Reaper(yard.state, yard.storage, batch_seconds=0).forget()

    assert set(await _count(yard, redis, namespace)) == _FIXED - _OF_BATCHES


async def _relay_all(state: State, bus: Bus, amqp_url: str) -> None:
    user = unquote(urlsplit(amqp_url).username or "")
    for box in ("submissions", "events", "replies"):
        relay = Relay(state, bus, box, holder="test", service_user=user)
        while await state.outbox.length(box):
            await relay.relay_some(wait_seconds=0.1)
    while await state.events.take_progress(limit=100):
        pass


async def _is_delivered(redis: "Redis[str]", namespace: str, endpoint: str) -> bool:
    waiting = [f"{namespace}webhook-{what}:{endpoint}" for what in ("queue", "claims")]
    return not any([await redis.zcard(key) for key in waiting])


async def _let_a_month_pass(yard: BatchYard, redis: "Redis[str]", namespace: str) -> None:
    """Let all be due that has an end, and the dispatcher do its duties."""
    # A lane job drops what is ready of batches that have ended.
    await yard.state.lanes.open_job(LANE, "", JOB)
    assert await yard.state.claims.take(LANE, JOB, lease_seconds=9, slices=99, rows=99) == []
    reaper = Reaper(yard.state, yard.storage, ended_seconds=-1)
    await reaper.let_leave()
    # The second time for what is garbage a day after the first.
    for _ in range(2):
        for due in ("garbage", "expiring", "uploads"):
            key = f"{namespace}{due}"
            for member in await redis.zrange(key, 0, -1):
                await redis.zadd(key, {member: _LONG_AGO})
                if due == "uploads":
                    await redis.hset(f"{namespace}upload:{member}", "expires_at", _LONG_AGO)
        await reaper.expire()
        await reaper.sweep()
    await reaper.sweep_abandoned(older_than_seconds=-3600)
    async for key in redis.scan_iter(match=f"{namespace}*", count=1000):
        if await redis.ttl(key) >= 0:
            await redis.delete(key)


async def _count(yard: BatchYard, redis: "Redis[str]", namespace: str) -> Counter[str]:
    """Keys and objects by kind, without the object that shows whether S3 works."""
    # A scan may tell the same key twice while Redis makes its table smaller.
    keys = {key.removeprefix(namespace) async for key in redis.scan_iter(match=f"{namespace}*")}
    kinds = Counter(_kind(key) for key in keys)
    objects = [name.rpartition("/")[2] for name in await yard.storage.keys("") if name != READABLE]
    return kinds + Counter(re.sub(r"^commit-\w+", "commit", name) for name in objects)


def _kind(key: str) -> str:
    head, _, rest = key.partition(":")
    return f"{head}:{rest.rpartition(':')[2]}" if head in ("lane", "lease") else head


def _name() -> str:
    return f"m-{secrets.token_hex(8)}"
