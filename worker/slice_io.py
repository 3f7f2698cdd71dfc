"""Input and output of a slice: reads its bytes from S3, and writes its results to S3 and Redis."""

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import structlog

from shared import crash
from shared.errors import NotFoundError, TransientError
from shared.ledger.copies import read_slice
from shared.ledger.parts import part_key
from shared.slices import Claim, Part, ReleaseReason, Stop, new_part, part_label
from shared.state import State
from shared.storage import Storage
from shared.tasks import beside
from shared.tracing import spans
from worker.outcomes import Outcome, SliceResult
from worker.rows import PartBody

log = structlog.get_logger()

#: How often, and with which pauses, it is asked whether the dispatcher has failed a batch.
_CLOSING_LOOKS, _CLOSING_PAUSE_SECONDS = 50, 0.1


class SliceInput(NamedTuple):
    """What a run begins with."""

    #: The slice's own lines, or the outcome of a slice that cannot be read.
    lines: bytes | Outcome
    #: The body of `claim.kept`; empty if there is none.
    kept: bytes = b""


async def fetch(storage: Storage, claim: Claim) -> SliceInput:
    """Read what the slice's run begins with.

    Raises TransientError when S3 is away. An object for which S3 fails alone must not break what
    other slices run together with it.
    """
    with spans.named(claim.traceparent):
        return SliceInput(
            *await asyncio.gather(_fetch_lines(storage, claim), _fetch_kept(storage, claim))
        )


async def _fetch_lines(storage: Storage, claim: Claim) -> bytes | Outcome:
    try:
        return await read_slice(
            storage,
            claim.batch_id,
            claim.slice,
            key=claim.key,
            etag=claim.etag,
            bucket=claim.bucket,
            version_id=claim.version_id,
        )
    except NotFoundError:
        return Outcome.INPUT_LOST
    except TransientError as error:
        await storage.check_reads()
        log.warning("slice.unread", batch_id=claim.batch_id, reason=str(error))
        return Outcome.INPUT_UNREAD


async def _fetch_kept(storage: Storage, claim: Claim) -> bytes:
    """Without what was kept, its rows run again."""
    if claim.kept is None:
        return b""
    try:
        return await storage.get(claim.kept.key, etag=claim.kept.etag)
    except (NotFoundError, TransientError) as error:
        log.warning("slice.kept_unread", batch_id=claim.batch_id, reason=str(error))
        return b""


async def begin(state: State, claims: Sequence[Claim]) -> list[bool]:
    """Whether each of a lane's slices may go to the engine now.

    All may while Redis is away: what becomes of their claims shows when they settle.
    """
    try:
        return await state.claims.begin(claims)
    except TransientError as error:
        log.warning("slices.begun_unseen", reason=str(error))
        return [True] * len(claims)


async def settle(
    state: State, storage: Storage, claim: Claim, result: SliceResult, *, slice_events: bool = False
) -> None:
    """Make the end of a run durable: commit the slice's part, or give the slice back.

    A slice that goes back keeps what was answered of it, for its next run. The part is in S3 before
    the commit or the release. If the commit comes too late, the part is an orphan under a
    key of its own epoch, and is removed with the batch's other parts.
    """
    with spans.named(claim.traceparent):
        await _settle(state, storage, claim, result, slice_events=slice_events)


async def _settle(
    state: State, storage: Storage, claim: Claim, result: SliceResult, *, slice_events: bool
) -> None:
    match result.outcome:
        case Outcome.STRUCK:
            await state.claims.release(
                claim,
                kept=await _keep(storage, claim, result.body),
                strikes=1,
                reason=ReleaseReason.ENGINE_DIED,
                strike_ranges=result.strike_ranges,
                last_words=result.reason,
                max_deaths=result.max_deaths,
                gave_results=result.gave_results,
                is_tenants_own=result.is_tenants_own,
            )
        case Outcome.UNSEEN:
            await state.claims.release(
                claim,
                kept=await _keep(storage, claim, result.body),
                reason=ReleaseReason.ENGINE_UNAVAILABLE,
            )
        case Outcome.PAUSED:
            await state.claims.release(
                claim,
                kept=await _keep(storage, claim, result.body),
                reason=ReleaseReason.PAUSED,
            )
        case Outcome.LANE_FAILED:
            await state.claims.release(
                claim,
                kept=await _keep(storage, claim, result.body),
                reason=ReleaseReason.ENGINE_FAILED,
                engine_failure=result.reason,
            )
        case Outcome.INPUT_UNREAD:
            await state.claims.release(claim)
        case Outcome.INPUT_LOST:
            await _end_batch(state, claim)
            await state.claims.release(claim, reason=ReleaseReason.INPUT_LOST)
        case Outcome.DONE:
            await _commit(state, storage, claim, result, slice_events=slice_events)
        case Outcome.SETTLED:
            pass


async def _end_batch(state: State, claim: Claim) -> None:
    """Have the dispatcher fail the batch; returns when it has, or after a pause.

    The slice is not given back before: it would be claimed, and its input looked for, again and
    again.
    """
    await state.claims.lose_input(claim)
    place = (claim.batch_id, claim.lane)
    for _ in range(_CLOSING_LOOKS):
        if (await state.claims.stops([place])).get(place) is Stop.CLOSED:
            return
        await asyncio.sleep(_CLOSING_PAUSE_SECONDS)


async def _commit(
    state: State, storage: Storage, claim: Claim, result: SliceResult, *, slice_events: bool
) -> None:
    body = result.body
    if not body.rows:
        await state.claims.release(claim)
        return
    crash.point("sink.rows_run")
    part = await _write(storage, claim, body)
    crash.point("sink.part_written")
    if part is None:
        # If that part was not committed, the next claim writes under another key.
        await state.claims.release(claim)
        return
    answer = await state.claims.commit(claim, part, announced=slice_events, dead=result.dead)
    crash.point("sink.committed")
    log.debug("slice.committed", batch_id=claim.batch_id, index=claim.index, rows=part.rows)
    if answer != "ok":
        log.warning("commit.too_late", batch_id=claim.batch_id, index=claim.index, outcome=answer)
    elif result.dead:
        rows = [row.id for row in result.dead]
        log.error("rows.given_up", lane=claim.lane, batch_id=claim.batch_id, rows=rows)


async def _keep(storage: Storage, claim: Claim, body: PartBody) -> Part | None:
    """Write what was answered; None if that is nothing new, or if S3 is away.

    A slice goes back at once rather than wait for S3: rows that are not kept run again.
    """
    if body.rows <= (claim.kept.rows if claim.kept else 0):
        return None
    try:
        part = await _write(storage, claim, body)
    except TransientError as error:
        log.warning("slice.not_kept", batch_id=claim.batch_id, reason=str(error))
        return None
    crash.point("sink.kept")
    return part


async def _write(storage: Storage, claim: Claim, body: PartBody) -> Part | None:
    """Write the claim's part; None if it has one already.

    When the worker of a sink's task dies, Ray runs the task again, even after its commit, and
    perhaps the engine's calls as well. Their other answers must not replace the first ones.
    """
    key = part_key(claim.batch_id, claim.index, claim.epoch)
    part = await beside(lambda _: new_part(key, *body), body.output)
    stored = await storage.put_once(key, body.output + body.error, label=part_label(part))
    if stored is None:
        log.warning("part.written_before", batch_id=claim.batch_id, index=claim.index)
        return None
    return part._replace(etag=stored.etag)
