"""Restores batches, files, keys and webhook endpoints in Redis from what S3 says.

Everything here may be repeated. Newer data in Redis is kept.
"""

import json
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from shared.lifecycle import Status
from shared.retention import RESERVED_SECONDS, UNUSED_PLAN_SECONDS
from shared.slices import Part, Slice
from shared.state.additions import Additions
from shared.state.away import Away
from shared.state.batches import Pin
from shared.state.claims import Claims
from shared.state.client import Client
from shared.state.engines import Engines
from shared.state.files import FileRecord
from shared.state.lanes import Lanes
from shared.state.pipelines import Pipelines
from shared.state.rebuilding import raise_if
from shared.state.scripts import Scripts, pairs
from shared.state.slices import pending_key
from shared.state.tenants import Tenants
from shared.tenants import TenantSettings

Restored = Literal["made", "mended", "ended"]
#: Slices written in one command.
_MANY = 500
#: The keys about a batch's slices, besides its plan, that are rewritten.
_OF_SLICES = ("parts", "kept", "commits", "epochs")


class Stage(NamedTuple):
    """The fields that one change wrote into a record, and its event if that is announced again."""

    fields: Mapping[str, str | int]
    kind: str = ""
    pin: Pin = Pin(0, 0)


@dataclass(frozen=True)
class LiveBatch:
    """A batch that has not ended, with its plan if it has one."""

    id: str
    status: Status
    stages: Sequence[Stage]
    #: The kind of event to publish if the status is new to Redis.
    last: str = ""
    input_file: FileRecord | None = None
    plan: str = ""
    lanes: Sequence[str] = ()
    slices: Sequence[Slice] = ()
    #: The part of each committed slice, and the part's epoch.
    parts: Mapping[int, tuple[Part, int]] | None = None
    #: Parts with some rows of slices that have to run again.
    kept: Mapping[int, Part] | None = None
    #: Slices that will not be run any more.
    given_up: frozenset[int] = frozenset()
    #: The names of the rows of an open batch, and their lines, as digests.
    names: Mapping[str, str] = field(default_factory=dict)
    #: Whether rows of it are lost, so that it fails.
    has_lost_input: bool = False


@dataclass(frozen=True)
class EndedBatch:
    """A batch that has ended, as its commit describes it."""

    id: str
    record: Mapping[str, str | int]
    event: str
    pin: Pin
    fields: Mapping[str, str | int]
    files: Sequence[Mapping[str, str | int]]
    garbage: str
    garbage_later: Sequence[str]
    input_file: FileRecord | None
    #: Whether it ended too long ago to be announced again.
    silent: bool
    #: The metadata if a client has changed it since the end (JSON; empty if removed), else None.
    metadata: str | None = None


class Restore:
    """The changes that a rebuild makes. `base` is higher than any sequence number used before."""

    def __init__(self, redis: Client, scripts: Scripts, namespace: str) -> None:
        self._redis = redis
        self._scripts = scripts
        self._namespace = namespace
        self.away = Away(redis, scripts, namespace)

    async def begin(self) -> None:
        """Mark the start of a rebuild, which pauses callers and the leading dispatcher."""
        await self._redis.set(f"{self._namespace}rebuilding", "1")

    async def is_under_way(self) -> bool:
        """Whether a rebuild is in progress."""
        return bool(await self._redis.exists(f"{self._namespace}rebuilding"))

    async def raise_if_under_way(self) -> None:
        """Raise TransientError if a rebuild is in progress.

        Call this after saving a change of Redis to S3: a running rebuild may already have read S3,
        and would then undo the change.
        """
        raise_if(await self.is_under_way())

    async def end(self) -> None:
        """Mark the end of the rebuild and wake the dispatcher."""
        await self._redis.delete(f"{self._namespace}rebuilding")
        await self._redis.publish(f"{self._namespace}bell:dispatcher", "1")

    async def has_leader(self) -> bool:
        """Whether a dispatcher holds the lease, and so may still be working."""
        return bool(await self._redis.exists(f"{self._namespace}lease:dispatcher"))

    async def take_lanes(self) -> None:
        """Take all lanes and claims away from their lane jobs."""
        engines = Engines(self._redis, self._scripts, self._namespace)
        lanes = Lanes(self._redis, self._scripts, self._namespace, engines)
        claims = Claims(self._redis, self._scripts, self._namespace)
        for lane in await lanes.names():
            job = await lanes.job(lane)
            await lanes.open_job(lane, job.id, "")
            await claims.reap(lane, all_claims=True)

    async def pipeline(
        self,
        pipeline_id: str,
        tenant: str,
        created_at: int,
        fields: Mapping[str, str | int],
        *,
        ended_at: int | None,
        told: str,
    ) -> None:
        """Write a pipeline's record as S3 has it, and tell its end again unless it is old."""
        pipelines = Pipelines(self._redis, self._scripts, self._namespace)
        await pipelines.write(pipeline_id, tenant, created_at, fields, ended_at=ended_at, told=told)

    async def raise_numbers(self, batch_ids: Sequence[str], base: int) -> None:
        """Give the next event of ended batches a number that was never used."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for batch_id in batch_ids:
                pipe.hset(f"{self._namespace}batch:{batch_id}", "sequence", base)
            await pipe.execute()

    async def set_metadata(self, batch_id: str, metadata: str) -> None:
        """Set the metadata (JSON; empty for none) of an ended batch."""
        key = f"{self._namespace}batch:{batch_id}"
        if metadata:
            await self._redis.hset(key, "metadata", metadata)
        else:
            await self._redis.hdel(key, "metadata")

    async def reserve(self, prefix: str, *, until: int) -> None:
        """Let objects be swept from then on, in Unix seconds."""
        await self._redis.zadd(f"{self._namespace}garbage", {prefix: until})

    async def ended(self, batches: Sequence[EndedBatch], *, base: int) -> list[Restored]:
        """Restore ended batches, in one round trip."""
        return await self._scripts.run_all(
            "restore_ended",
            [
                (
                    one.id,
                    json.dumps(
                        {
                            "record": pairs(one.record),
                            "fields": pairs(one.fields),
                            "event": one.event,
                            "sequence": one.pin.sequence,
                            "at_ms": one.pin.at_ms,
                            "files": list(one.files),
                            "garbage": one.garbage,
                            "garbage_later": list(one.garbage_later),
                            "input_file": _file(one.input_file),
                            "base": base,
                            "silent": one.silent,
                            "metadata": one.metadata,
                        }
                    ),
                )
                for one in batches
            ],
        )

    async def live(self, batch: LiveBatch, *, base: int) -> Restored:
        """Restore a live batch from what S3 says. Its claims are dropped."""
        pending = await self._slices(batch, base)
        left = {
            lane: sum(
                slice_.lane == number and index not in (batch.parts or {})
                for index, slice_ in enumerate(batch.slices)
                if index not in batch.given_up
            )
            for number, lane in enumerate(batch.lanes)
        }
        params = {
            "status": batch.status,
            "stages": [
                {"fields": pairs(stage.fields), "kind": stage.kind, **stage.pin._asdict()}
                for stage in batch.stages
            ],
            "last": batch.last,
            "base": base,
            "input_file": _file(batch.input_file),
            # Lua cannot tell an empty object from an empty list.
            "left": left or {"": 0},
            "pending": {lane: len(pending[lane]) for lane in batch.lanes} or {"": 0},
        }
        additions = Additions(self._redis, self._scripts, self._namespace, self.away)
        await additions.restore_names(batch.id, batch.names)
        outcome: Restored = await self._scripts.run("restore_batch", batch.id, json.dumps(params))
        if batch.has_lost_input:
            await self._scripts.run("lose_input", batch.lanes[0], batch.id)
        return outcome

    async def files(self, files: Sequence[FileRecord]) -> int:
        """Create files. Returns how many were new to Redis."""
        calls = [(json.dumps(file.to_fields()),) for file in files]
        return sum(await self._scripts.run_all("restore_file", calls))

    async def known_files(self, file_ids: Sequence[str]) -> list[bool]:
        """For each file, whether Redis has it."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for file_id in file_ids:
                pipe.exists(f"{self._namespace}file:{file_id}")
            return [bool(found) for found in await pipe.execute()]

    async def orphans(self, files: Sequence[tuple[str, str]]) -> None:
        """Let the sweeper remove objects without a file, given as pairs of file id and key."""
        calls = [(file_id, key, RESERVED_SECONDS) for file_id, key in files]
        await self._scripts.run_all("restore_orphan", calls)

    async def key(self, key_id: str, digest: str, fields: Mapping[str, str | int]) -> bool:
        """Create an API key. Returns False if Redis had it. A revocation on either side counts."""
        return bool(await self._scripts.run("restore_key", key_id, digest, *pairs(fields)))

    async def tenants(
        self, settings: Mapping[str, TenantSettings], *, kept: Collection[str]
    ) -> None:
        """Set what operators have set for tenants, and forget all others but those of `kept`."""
        tenants = Tenants(self._redis, self._scripts, self._namespace)
        for tenant in {*await tenants.all(), *settings} - set(kept):
            await tenants.put(tenant, settings.get(tenant, TenantSettings()))

    async def webhook(self, tenant: str, endpoint_id: str, fields: Mapping[str, str]) -> bool:
        """Create a webhook endpoint. Returns False if Redis had it."""
        arguments = (tenant, endpoint_id, *pairs(fields))
        return bool(await self._scripts.run("restore_webhook", *arguments))

    async def webhooks(self) -> AsyncIterator[tuple[str, str]]:
        """The tenant and id of every webhook endpoint in Redis."""
        async for key in self._redis.scan_iter(match=f"{self._namespace}webhooks:*", count=1000):
            for endpoint_id in await self._redis.zrange(key, 0, -1):
                yield key.rpartition(":")[2], endpoint_id

    async def delete_webhook(self, tenant: str, endpoint_id: str) -> None:
        """Delete an endpoint that S3 no longer has."""
        await self._scripts.run("delete_webhook", tenant, endpoint_id)

    async def delete_file(self, tenant: str, file_id: str) -> bool:
        """Delete a file that S3 no longer has. Returns False if Redis did not have it."""
        return bool(await self._scripts.run("delete_file", tenant, file_id))

    async def _slices(self, batch: LiveBatch, base: int) -> dict[str, list[int]]:
        """Write slices, parts and epochs. Returns the slices still to be run, by lane."""
        parts, kept, ns = batch.parts or {}, batch.kept or {}, self._namespace
        pending: dict[str, list[int]] = {lane: [] for lane in batch.lanes}
        before = 0
        # An older state may have more than S3, but only the listing of S3 counts.
        await self._redis.unlink(*(f"{ns}{what}:{batch.id}" for what in _OF_SLICES))
        for first in range(0, len(batch.slices), _MANY):
            async with self._redis.pipeline(transaction=False) as pipe:
                numbered = list(enumerate(batch.slices[first : first + _MANY], start=first))
                plan = f"{ns}plan:{batch.id}:{batch.plan}"
                pipe.hset(plan, mapping={str(i): slice_.to_text() for i, slice_ in numbered})
                pipe.expire(plan, UNUSED_PLAN_SECONDS)
                epochs: dict[str, int] = {}
                commits: dict[str, int] = {}
                for index, slice_ in numbered:
                    lane = batch.lanes[slice_.lane]
                    if index in parts:
                        part, epochs[str(index)] = parts[index]
                        commits[str(index)] = before
                        before += part.rows
                        pipe.hset(f"{ns}parts:{batch.id}", str(index), json.dumps(part))
                        continue
                    if index in kept:
                        pipe.hset(f"{ns}kept:{batch.id}", str(index), json.dumps(kept[index]))
                    # Higher than the epoch of any claim, which fences jobs that still run it.
                    epochs[str(index)] = base
                    if index not in batch.given_up:
                        pending[lane].append(index)
                        key = ns + pending_key(batch.id, batch.plan, batch.lanes, lane)
                        pipe.zadd(key, {str(index): index})
                        pipe.expire(key, UNUSED_PLAN_SECONDS)
                pipe.hset(f"{ns}epochs:{batch.id}", mapping=epochs)
                if commits:
                    pipe.zadd(f"{ns}commits:{batch.id}", commits)
                await pipe.execute()
        return pending


def _file(file: FileRecord | None) -> dict[str, str | int] | str:
    return file.to_fields() if file else ""
