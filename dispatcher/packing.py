"""Inline messages become batches together: one object in S3 and one step in Redis for all of them.

A pack takes what has arrived by the time it is made; it never waits for more.
"""

import asyncio
import hashlib
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import msgspec
import structlog

from dispatcher.planning import Planner
from dispatcher.waiting import resolve
from shared import crash
from shared.bus.messages import Reason, RejectedError
from shared.errors import NotFoundError, TransientError
from shared.ledger.changes import unpack_manifest
from shared.ledger.manifests import Manifest
from shared.ledger.packs import PackedBatch, PackedPlan, pack, pack_prefix, placed
from shared.retention import RESERVED_SECONDS
from shared.state import KnownBatch, NewBatch, PackedAcceptance, RateStatus, Start, State
from shared.storage import Storage
from shared.submission.accept import conflict, new_batch
from shared.submission.admission import NewBatchCall, NewBatchQuota, Reached, refusal_text
from shared.tracing import spans

log = structlog.get_logger()

#: Limits of one pack: the script that accepts it blocks Redis while it runs.
_MAX_BATCHES = 64
_MAX_BYTES = 4 * 1024 * 1024
#: While one pack is on its way, the next one is made.
_PACKS_AT_ONCE = 2
#: Larger inputs are planned in a thread.
_QUICK_BYTES = 64 * 1024


class InlineBatch(NamedTuple):
    """A batch that is to be made; its manifest does not say yet where the input is."""

    manifest: Manifest
    body: bytes
    reply: Mapping[str, str] | None


_Waiting = tuple[InlineBatch, asyncio.Future[None]]


class Packer:
    """Makes batches of inline messages; those with a good input start at once, with a planner."""

    def __init__(
        self, state: State, storage: Storage, *, quota: NewBatchQuota, planner: Planner | None
    ) -> None:
        self._state = state
        self._storage = storage
        self._quota = quota
        self._planner = planner
        self._waiting: deque[_Waiting] = deque()
        self._in_hand: set[str] = set()
        self._workers: set[asyncio.Task[None]] = set()
        self._working = 0
        #: While one pack becomes batches, another one is on its way to S3. Steps of two packs that
        #: follow each other are like one that is twice as long: others wait for both.
        self._creating = asyncio.Lock()

    async def make(self, batch: InlineBatch) -> None:
        """Return when the batch is durable, including when it was so before.

        Raises RejectedError, and TransientError while Redis or S3 is away.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((batch, done))
        if self._working < _PACKS_AT_ONCE:
            self._working += 1
            worker = asyncio.create_task(self._work())
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)
        await done

    async def make_alone(self, batch: InlineBatch) -> None:
        """Like `make`, but in a separate pack, for a message that may kill the dispatcher."""
        [error] = await self._commit([batch])
        if error is not None:
            raise error

    async def _work(self) -> None:
        try:
            while group := self._next():
                try:
                    await self._settle(group)
                finally:
                    self._in_hand.difference_update(batch.manifest.id for batch, _ in group)
        finally:
            self._working -= 1

    def _next(self) -> list[_Waiting]:
        """The batches for the next pack. A batch that is being packed waits for the one after."""
        group, later, size = list[_Waiting](), list[_Waiting](), 0
        while self._waiting and len(group) < _MAX_BATCHES:
            batch, _ = one = self._waiting[0]
            size += len(batch.body)
            if group and size > _MAX_BYTES:
                break
            self._waiting.popleft()
            # A pack names a batch once, so a repeat or a contradiction waits for the next one.
            is_in_hand = batch.manifest.id in self._in_hand
            (later if is_in_hand else group).append(one)
            self._in_hand.add(batch.manifest.id)
        self._waiting.extendleft(reversed(later))
        return group

    async def _settle(self, group: Sequence[_Waiting]) -> None:
        """Commit the group, and give each caller its outcome."""
        batches = [batch for batch, _ in group]
        [outcomes] = await asyncio.gather(self._commit(batches), return_exceptions=True)
        if isinstance(outcomes, TransientError):
            outcomes = [TransientError(str(outcomes)) for _ in group]
        elif isinstance(outcomes, BaseException) and len(group) == 1:
            outcomes = [outcomes]
        elif isinstance(outcomes, BaseException):
            # A bug. The batch that causes it must not fail the others.
            for one in group:
                await self._settle([one])
            return
        for (_, done), error in zip(group, outcomes, strict=True):
            resolve(done, error)

    async def _commit(self, batches: Sequence[InlineBatch]) -> Sequence[BaseException | None]:
        """For each batch, the error if it was not made, else None."""
        prefix = pack_prefix()
        wanted = [
            NewBatchCall(one.manifest.tenant, one.manifest.id, one.manifest.endpoint, len(one.body))
            for one in batches
        ]
        reserved, _ = await asyncio.gather(
            self._quota.reserve_all(self._state, wanted),
            self._state.files.reserve(prefix, seconds=RESERVED_SECONDS),
        )
        new, to_accept = [], []
        errors: dict[str, BaseException] = {}
        for batch, outcome in zip(batches, reserved, strict=True):
            manifest = batch.manifest
            match outcome:
                case None:
                    new.append(batch)
                case KnownBatch():
                    to_accept.append(
                        NewBatch(manifest.id, manifest.fingerprint, {}, reply=batch.reply)
                    )
                case _:
                    errors[manifest.id] = _refusal(manifest.tenant, outcome)
        if new:
            to_accept += await self._store(prefix, new)
        else:
            await self._state.files.unreserve(prefix)
            prefix = ""
        outcomes = await self._create(prefix, to_accept) if to_accept else []
        crash.point("intake.accepted")
        for one, accepted in zip(to_accept, outcomes, strict=True):
            if (error := await self._error(one, accepted, batches)) is not None:
                errors[one.id] = error
        return [errors.get(batch.manifest.id) for batch in batches]

    async def _create(
        self, prefix: str, batches: Sequence[NewBatch]
    ) -> Sequence[PackedAcceptance | Exception]:
        async with self._creating:
            return await self._state.batches.accept_pack(prefix, batches)

    async def _store(self, prefix: str, batches: Sequence[InlineBatch]) -> list[NewBatch]:
        """Put inputs, manifests and plans into S3."""
        if self._planner is not None:
            await self._planner.look_at_lanes()
        given = [(batch.manifest, batch.body) for batch in batches]
        is_quick = sum(len(body) for _, body in given) <= _QUICK_BYTES
        made = partial(self._packed, placed(prefix, self._storage.bucket, given))
        body, starts = made() if is_quick else await asyncio.to_thread(made)
        stored = await self._storage.put(starts[0][0].key, body)
        crash.point("intake.packed")
        return [
            new_batch(
                msgspec.structs.replace(manifest, etag=stored.etag),
                reply=_with_warnings(batch.reply, start),
                start=start,
            )
            for (manifest, start), batch in zip(starts, batches, strict=True)
        ]

    def _packed(
        self, batches: Sequence[tuple[Manifest, bytes]]
    ) -> tuple[bytes, list[tuple[Manifest, Start | None]]]:
        """The pack's bytes, and each manifest with its batch's plan if that can start at once."""
        pinned = [(_with_digest(manifest, body), body) for manifest, body in batches]
        starts = [(manifest, self._start(manifest, body)) for manifest, body in pinned]
        lines = [
            PackedBatch(manifest, start and PackedPlan(start.fields, start.slices))
            for manifest, start in starts
        ]
        return pack([body for _, body in batches], lines), starts

    def _start(self, manifest: Manifest, body: bytes) -> Start | None:
        if self._planner is None:
            return None
        return self._planner.plan_inline(
            manifest.endpoint,
            body,
            offset=manifest.start,
            tenant=manifest.tenant,
            priority=manifest.priority,
            expires_at=manifest.expires_at,
            has_cache=manifest.cache_seconds > 0,
        )

    async def _error(
        self,
        batch: NewBatch,
        outcome: PackedAcceptance | Exception,
        batches: Sequence[InlineBatch],
    ) -> BaseException | None:
        match outcome:
            case Exception():
                return outcome
            case "conflict":
                # This pack, or one from before a crash, may contain it with another body.
                with suppress(NotFoundError):
                    await unpack_manifest(self._state, self._storage, batch.id)
                [message_id] = [
                    one.manifest.message_id for one in batches if one.manifest.id == batch.id
                ]
                reason = Reason("idempotency_conflict", str(conflict(message_id)), "message_id")
                return RejectedError([reason])
            case "started" if batch.start is not None:
                with spans.named(str(batch.fields.get("traceparent", ""))):
                    log.info(
                        "batch.planned",
                        batch_id=batch.id,
                        lane=batch.start.lane,
                        requests=batch.start.fields["total"],
                        slices=len(batch.start.slices),
                    )
        return None


def _with_digest(manifest: Manifest, body: bytes) -> Manifest:
    """A pack has an ETag of its own only as a whole, and none that survives a rebuild of Redis."""
    return msgspec.structs.replace(manifest, sha256=hashlib.sha256(body).hexdigest())


def _with_warnings(
    reply: Mapping[str, str] | None, start: Start | None
) -> Mapping[str, str] | None:
    """The reply, with what the plan warns of."""
    if reply is None or start is None or "warnings" not in start.fields:
        return reply
    return {**reply, "warnings": str(start.fields["warnings"])}


def _refusal(tenant: str, refused: Reached | RateStatus) -> RejectedError:
    return RejectedError([Reason("quota_exceeded", refusal_text(tenant, refused))])
