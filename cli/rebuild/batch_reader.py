"""Reads a batch from its objects in S3. What is damaged is set aside and costs no other batch."""

import asyncio
import hashlib
import secrets
import time

import msgspec

from cli.rebuild.damage import Damage
from cli.rebuild.from_s3 import BatchObjects, ended_batch, live_batch, plan_of
from cli.rebuild.given_rows import GivenRows
from cli.rebuild.lost_commits import commit_again
from cli.rebuild.report import Report
from shared.errors import BrokenObjectError, NotFoundError
from shared.ledger.additions import addition_key, read_addition
from shared.ledger.commits import (
    Cancellation,
    Commit,
    LaneFailure,
    cancel_key,
    commit_key,
    lane_failure_key,
    read_commit,
    save_lane_failure,
)
from shared.ledger.copies import copies_prefix, copies_until
from shared.ledger.manifests import Manifest, manifest_key, to_manifest
from shared.ledger.packs import PACKS, PackedBatch, read_manifest
from shared.ledger.plans import Plan, plan_key, read_plan, set_plan_aside
from shared.ledger.quarantine import set_aside
from shared.ledger.records import answered, encoded, read_record
from shared.lifecycle import TRANSITIONS, Event
from shared.slices import labelled_part
from shared.state import State
from shared.state.restore import EndedBatch, LiveBatch
from shared.storage import Storage

_LABELS_AT_ONCE = 100
#: No object has it, so a batch whose input is damaged fails when it reads it.
_NO_ETAG = "damaged"
_LOST_REASON = "The record of why this lane was given up was damaged."


class _LostError(Exception):
    """Nothing says what the batch was, and all of it has been set aside."""


class BatchReader:
    """Makes of the objects of a batch what Redis should know of it."""

    def __init__(
        self, state: State, storage: Storage, report: Report, damage: Damage, *, base: int
    ) -> None:
        self._state = state
        self._storage = storage
        self._report = report
        self._damage = damage
        self._base = base

    async def read(self, found: BatchObjects) -> EndedBatch | LiveBatch | None:
        """The batch; None if S3 has too little of it, which the report says."""
        packed = None
        if text := await self._state.rebuild_notes.packed(found.batch_id):
            packed = msgspec.json.decode(text, type=PackedBatch)
        try:
            if (event := found.commit) is not None:
                ended = await self._read_ended(found, event, packed)
                if ended is not None:
                    return ended
            return await self._read_live(found, packed)
        except _LostError:
            return None

    async def changed_manifest(self, found: BatchObjects) -> Manifest | None:
        """The manifest in the batch's own folder, if there is one that can be read."""
        if "manifest.json" not in found.written:
            return None
        key = manifest_key(found.batch_id)
        try:
            async with answered(self._storage, key):
                return await read_manifest(self._storage, found.batch_id)
        except NotFoundError:
            return None
        except BrokenObjectError as error:
            del found.written["manifest.json"]
            await self._damage.set_aside(error, "what a client changed of the batch is lost")
            return None

    async def _read_ended(
        self, found: BatchObjects, event: Event, packed: PackedBatch | None
    ) -> EndedBatch | None:
        commit = await self._commit(found, event, packed)
        # A batch that was cancelled while its commit was written did not end by that commit.
        if commit is None or commit.record["status"] not in TRANSITIONS[event].sources:
            return None
        manifest = None
        if found.has_changed_since(event):
            manifest = await self.changed_manifest(found)
        if found.has_copies:
            await self._reserve_copies(found, expires_at=0)
        return ended_batch(found, commit, manifest, now=time.time())

    async def _commit(
        self, found: BatchObjects, event: Event, packed: PackedBatch | None
    ) -> Commit | None:
        key = commit_key(found.batch_id, event)
        try:
            async with answered(self._storage, key):
                return await read_commit(self._storage, found.batch_id, event)
        except NotFoundError:
            return None
        except BrokenObjectError as error:
            broken = error
        try:
            manifest = await self._manifest(found, packed)
        except _LostError:
            self._damage.note(broken, "the batch is lost")
            raise
        if manifest is None:
            return None
        commit = await commit_again(self._storage, found, manifest, event, base=self._base)
        outcome = "it was made again; the usage of the batch, and when it began, are lost"
        await self._damage.keep_copy(broken, outcome)
        # At no moment is there none: a batch that has ended must not run again.
        await self._storage.put(key, encoded(commit))
        return commit

    async def _read_live(self, found: BatchObjects, packed: PackedBatch | None) -> LiveBatch | None:
        manifest = await self._manifest(found, packed)
        if manifest is None:
            return None
        if found.has_copies or manifest.open_model:
            # An open batch may get its first rows at any moment, and nobody reserves them then.
            await self._reserve_copies(found, expires_at=manifest.expires_at)
        manifest = await self._with_whole_input(manifest)
        plan = await self._plan(found, packed, manifest)
        labels = {} if plan is None else await self._labels(found)
        given = await self._given(found) if manifest.open_model else None
        return live_batch(
            found,
            manifest,
            plan if plan is None or given is None else given.plan(plan),
            await self._cancellation(found),
            await self._lane_failures(found, plan),
            labels=labels,
            given=given,
            plan_name=secrets.token_hex(4),
            now=time.time(),
        )

    async def _manifest(self, found: BatchObjects, packed: PackedBatch | None) -> Manifest | None:
        """The batch's manifest, or what comes nearest to it. None if nothing does."""
        key = manifest_key(found.batch_id)
        broken = None
        if "manifest.json" in found.written:
            try:
                async with answered(self._storage, key):
                    return await read_manifest(self._storage, found.batch_id)
            except NotFoundError:
                pass
            except BrokenObjectError as error:
                broken = error
        if packed is not None:
            if broken is not None:
                await self._damage.set_aside(broken, "the batch is as it was before its changes")
            return packed.manifest
        if broken is None and not found.has_run:
            # Its sender got no answer: the folder holds at most an input.
            self._report.add_problem(f"{found.batch_id} has no manifest")
            return None
        return await self._from_redis(found, broken or BrokenObjectError(key, "it is missing"))

    async def _from_redis(self, found: BatchObjects, broken: BrokenObjectError) -> Manifest:
        """What an older Redis has of the batch.

        Raises _LostError if it has nothing; then all of the batch is set aside.
        """
        known = await self._state.batches.many([found.batch_id])
        if not known:
            await self._damage.set_aside(broken, "the batch is lost")
            # Who sends it again begins anew.
            for name in await self._storage.keys(f"batches/{found.batch_id}/"):
                await set_aside(self._storage, name)
            raise _LostError from broken
        manifest = to_manifest(known[0].fields)
        await self._damage.keep_copy(broken, "it was made again from Redis")
        await self._storage.put(broken.key, encoded(manifest))
        return manifest

    async def _with_whole_input(self, manifest: Manifest) -> Manifest:
        """The manifest, with an ETag that does not fit if the input in its pack is damaged."""
        if not (manifest.key.startswith(PACKS) and manifest.sha256):
            return manifest
        end = manifest.start + manifest.size
        place = {"start": manifest.start, "end": end, "etag": manifest.etag}
        try:
            async with answered(self._storage, manifest.key):
                body = await self._storage.get(manifest.key, **place)  # type: ignore[arg-type]  # each has its own type
        except (NotFoundError, BrokenObjectError):
            # Whoever reads it will say so.
            return manifest
        if hashlib.sha256(body).hexdigest() == manifest.sha256:
            return manifest
        error = BrokenObjectError(manifest.key, f"the input of {manifest.id} in it is not its own")
        await self._damage.keep_copy(error, "the batch fails, and says that its input changed")
        return msgspec.structs.replace(manifest, etag=_NO_ETAG)

    async def _reserve_copies(self, found: BatchObjects, *, expires_at: int) -> None:
        """Let them be swept as if Redis had never forgotten them."""
        until = copies_until(expires_at, now=time.time())
        await self._state.restore.reserve(copies_prefix(found.batch_id), until=until)

    async def _plan(
        self, found: BatchObjects, packed: PackedBatch | None, manifest: Manifest
    ) -> Plan | None:
        key = plan_key(found.batch_id)
        broken = BrokenObjectError(key, "it is missing")
        if "plan.json" in found.written:
            try:
                async with answered(self._storage, key):
                    return await read_plan(self._storage, found.batch_id)
            except NotFoundError:
                pass
            except BrokenObjectError as error:
                broken = error
        elif packed is not None and packed.plan is not None:
            return plan_of(packed.plan, manifest)
        elif not found.parts:
            return None
        await self._damage.set_aside(broken, "the batch is planned again, and all its rows run")
        await set_plan_aside(self._storage, found.batch_id)
        found.parts.clear()
        return None

    async def _given(self, found: BatchObjects) -> GivenRows:
        """What the open batch was given. Without one of its additions, it has lost its input."""
        given = GivenRows()
        for number in range(max(found.additions, default=-1) + 1):
            key = addition_key(found.batch_id, number)
            try:
                async with answered(self._storage, key):
                    given.take(*await read_addition(self._storage, key))
            except (NotFoundError, BrokenObjectError) as error:
                reason = getattr(error, "reason", "it is missing")
                broken = BrokenObjectError(key, reason)
                await self._damage.keep_copy(broken, "its batch fails, and says that it lost rows")
                given.is_damaged = True
                break
        return given

    async def _cancellation(self, found: BatchObjects) -> Cancellation | None:
        if "cancel.json" not in found.written:
            return None
        key = cancel_key(found.batch_id)
        try:
            async with answered(self._storage, key):
                return await read_record(self._storage, key, Cancellation)
        except BrokenObjectError as error:
            again = Cancellation(int(found.written["cancel.json"]))
            await self._damage.keep_copy(error, "the batch is cancelled all the same")
            await self._storage.put(key, encoded(again))
            return again

    async def _lane_failures(self, found: BatchObjects, plan: Plan | None) -> list[LaneFailure]:
        lanes = str(plan.fields["lane"]).split() if plan is not None else []
        keys = {lane_failure_key(found.batch_id, lane): lane for lane in lanes}
        failures: list[LaneFailure] = []
        for name in found.lane_failures:
            key = f"batches/{found.batch_id}/{name}"
            try:
                async with answered(self._storage, key):
                    failures.append(await read_record(self._storage, key, LaneFailure))
            except BrokenObjectError as error:
                if (lane := keys.get(key)) is None:
                    await self._damage.set_aside(error, "its batch has no such lane")
                    continue
                await self._damage.keep_copy(error, "the lane is given up all the same")
                await save_lane_failure(self._storage, found.batch_id, lane, _LOST_REASON)
                failures.append(LaneFailure(lane, _LOST_REASON))
        return failures

    async def _labels(self, found: BatchObjects) -> dict[int, str]:
        """The labels of parts, by slice. Damaged parts are taken from those that were found."""
        labels: dict[int, str] = {}
        parts = list(found.parts.items())
        for first in range(0, len(parts), _LABELS_AT_ONCE):
            some = parts[first : first + _LABELS_AT_ONCE]
            texts = await asyncio.gather(*(self._label(one.key) for _, (_, one) in some))
            for (index, (_, one)), text in zip(some, texts, strict=True):
                try:
                    if isinstance(text, BrokenObjectError):
                        raise text
                    labelled_part(one.key, one.etag, one.size, text)
                except (BrokenObjectError, ValueError) as error:
                    del found.parts[index]
                    broken = BrokenObjectError(one.key, getattr(error, "reason", str(error)))
                    await self._damage.set_aside(broken, "the rows of its slice run again")
                else:
                    labels[index] = text
        return labels

    async def _label(self, key: str) -> str | BrokenObjectError:
        try:
            async with answered(self._storage, key):
                return await self._storage.label(key)
        except NotFoundError:
            return BrokenObjectError(key, "it is missing")
        except BrokenObjectError as error:
            return error
