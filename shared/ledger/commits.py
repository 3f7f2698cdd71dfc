"""Commits: how a batch ended. Each is written to S3 first and then applied in Redis.

A commit contains the batch's record. It is enough to restore an ended batch after Redis was lost,
and to announce its end under the same number.
"""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress

import msgspec
import structlog

from shared import crash
from shared.errors import (
    BrokenObjectError,
    InvalidTransitionError,
    NotFoundError,
    TransientError,
)
from shared.ledger.end_line import end_line
from shared.ledger.quarantine import set_aside
from shared.ledger.reasons import shortened
from shared.ledger.records import encoded, read_record
from shared.lifecycle import TRANSITIONS, Event
from shared.state import MovedError, Pin, State
from shared.storage import Storage

log = structlog.get_logger()

#: Events that end a batch without a finaliser: no files, and claimed slices are given up.
FAILURES = frozenset({Event.INPUT_REJECTED, Event.LANE_FAILED, Event.INPUT_LOST})
#: The events that end a batch. Where it has several commits, the first of these happened: a
#: cancelled batch can end in no other way, and a failure that was written before another end did
#: not happen.
ENDS = (
    Event.CANCEL_COMMITTED,
    Event.OUTPUT_COMMITTED,
    Event.EXPIRY_COMMITTED,
    Event.LANE_FAILED,
    Event.INPUT_LOST,
    Event.INPUT_REJECTED,
)


class Assembled(msgspec.Struct):
    """One written object, as recorded in the commit."""

    key: str
    etag: str
    size: int
    sha256: str
    rows: int
    file_id: str


class Commit(msgspec.Struct, kw_only=True):
    """The result of a batch. It is created once in S3 and decides what the result is.

    Only the record and the `sequence` and `at_ms` (Unix milliseconds) of its event are rewritten,
    if another event has taken that number in the meantime.
    """

    batch_id: str
    event: str
    #: The batch's record before its end.
    record: Mapping[str, str]
    sequence: int
    at_ms: int
    #: The fields that the end writes into the record.
    fields: Mapping[str, str | int]
    output: Assembled | None = None
    error: Assembled | None = None
    files: list[dict[str, str | int]] = []
    #: The prefix of objects to sweep at the end, and objects and prefixes to sweep a day later.
    garbage: str | None = None
    garbage_later: list[str] = []


class Cancellation(msgspec.Struct):
    """A cancellation that was accepted, with its time in Unix seconds."""

    cancelling_at: int


def commit_key(batch_id: str, event: str) -> str:
    """The S3 key of the commit."""
    return f"batches/{batch_id}/commit-{event}.json"


def cancel_key(batch_id: str) -> str:
    """The S3 key of the cancellation."""
    return f"batches/{batch_id}/cancel.json"


async def read_commit(storage: Storage, batch_id: str, event: str) -> Commit:
    """The commit. Raises NotFoundError and BrokenObjectError."""
    key = commit_key(batch_id, event)
    commit = await read_record(storage, key, Commit)
    if (commit.batch_id, commit.event) != (batch_id, event):
        raise BrokenObjectError(key, "it is the commit of another batch")
    return commit


async def create_commit(storage: Storage, commit: Commit) -> Commit:
    """Create the commit. Returns it, or the existing one if there is one already.

    One that is damaged was not carried out here, and is set aside.
    """
    key = commit_key(commit.batch_id, commit.event)
    while not await storage.create(key, encoded(commit)):
        try:
            return await read_commit(storage, commit.batch_id, commit.event)
        except BrokenObjectError as error:
            log.error("commit.broken", batch_id=commit.batch_id, key=key, reason=error.reason)  # noqa: TRY400  # the reason says it all
            await set_aside(storage, key)
    return commit


async def carry_out(state: State, storage: Storage, commit: Commit) -> bool:
    """Apply a saved commit in Redis. Returns False if it was applied already.

    Raises InvalidTransitionError if the batch's status does not allow it.
    """
    while True:
        try:
            is_new = await _apply(state, commit)
        except MovedError:
            record, pin = await state.batches.pinned(commit.batch_id)
            commit = msgspec.structs.replace(commit, record=record.fields, **pin._asdict())
            await storage.put(commit_key(commit.batch_id, commit.event), encoded(commit))
        else:
            if is_new:
                await _tell_end(state, commit.batch_id)
            return is_new


async def _apply(state: State, commit: Commit) -> bool:
    event, pin = Event(commit.event), Pin(commit.sequence, commit.at_ms)
    if event in FAILURES:
        return await state.apply(commit.batch_id, event, shortened(commit.fields), pin=pin)
    return await state.conclude(
        commit.batch_id,
        event,
        files=commit.files,
        fields=commit.fields,
        garbage=commit.garbage,
        garbage_later=commit.garbage_later,
        pin=pin,
    )


async def _tell_end(state: State, batch_id: str) -> None:
    """Write the line that says what became of the batch, which has ended without it, too."""
    with suppress(TransientError, NotFoundError):
        log.info("batch.ended", **end_line((await state.batches.get(batch_id)).fields))


def failure_fields(code: str, message: str, *, param: str | None = None) -> Mapping[str, str]:
    """What one of FAILURES writes to the record: one problem, of the batch as a whole."""
    problem = {"code": code, "line": None, "param": param, "message": message}
    return {"errors": json.dumps([problem]), "first_error": message}


async def fail(
    state: State,
    storage: Storage,
    batch_id: str,
    event: Event,
    fields: Mapping[str, str | int],
) -> bool:
    """End the batch by one of FAILURES. Returns False if it has failed already.

    Raises like `State.apply`, and then removes the commit of the failure that did not happen.
    """
    record, pin = await state.batches.pinned(batch_id)
    row = TRANSITIONS[event]
    if record.status is row.target:
        return False
    if record.status not in row.sources:
        raise InvalidTransitionError(batch_id, event, record.status)
    commit = Commit(
        batch_id=batch_id, event=event, record=record.fields, fields=fields, **pin._asdict()
    )
    commit = await create_commit(storage, commit)
    crash.point("commits.failure_kept")
    try:
        return await carry_out(state, storage, commit)
    except InvalidTransitionError:
        await storage.remove([commit_key(batch_id, event)])
        raise


async def cancel(state: State, storage: Storage, batch_id: str) -> bool:
    """Apply CANCEL_REQUESTED and save it in S3, so that no rebuild can undo it.

    Returns False if the batch was being cancelled already. Raises like `State.apply`, and
    TransientError if a running rebuild of Redis may undo it, so that the caller retries.
    """
    is_new = await state.apply(batch_id, Event.CANCEL_REQUESTED)
    crash.point("commits.cancelled")
    cancellation = Cancellation(await _cancelling_at(state, batch_id))
    # Also for a repeat: the first caller may have died before this.
    await storage.create(cancel_key(batch_id), encoded(cancellation))
    await state.restore.raise_if_under_way()
    # A whole rebuild may have passed that read S3 before the cancellation was saved.
    await _cancelling_at(state, batch_id)
    return is_new


async def _cancelling_at(state: State, batch_id: str) -> int:
    if at := (await state.batches.get(batch_id)).number("cancelling_at"):
        return at
    raise TransientError(f"A rebuild of Redis has undone the cancellation of batch {batch_id}.")


class LaneFailure(msgspec.Struct):
    """A failed lane of a batch that has other lanes."""

    lane: str
    reason: str


def lane_failure_key(batch_id: str, lane: str) -> str:
    """The S3 key of a lane's failure."""
    digest = hashlib.sha256(lane.encode()).hexdigest()[:16]
    return f"batches/{batch_id}/lane-failed-{digest}.json"


async def save_lane_failure(storage: Storage, batch_id: str, lane: str, reason: str) -> None:
    """Save that the batch's rows on the lane are given up. Call it before applying the failure."""
    failure = LaneFailure(lane, reason)
    await storage.put(lane_failure_key(batch_id, lane), encoded(failure))
