"""How a batch ended, as S3 keeps it: written first, then told to Redis.

With the record in it, it is enough to make an ended batch again where Redis was lost, and to tell
of its end under the same number.
"""

import hashlib
from collections.abc import Mapping

import msgspec

from shared import crash
from shared.errors import InvalidTransitionError, TransientError
from shared.lifecycle import TRANSITIONS, Event
from shared.state import MovedError, Pin, State
from shared.storage import Storage

#: Ends without a finaliser: no files, and whatever is claimed is given up.
FAILURES = frozenset({Event.INPUT_REJECTED, Event.LANE_FAILED, Event.INPUT_LOST})


class Assembled(msgspec.Struct):
    """One written object, as the commit object remembers it."""

    key: str
    etag: str
    size: int
    sha256: str
    rows: int
    file_id: str


class Commit(msgspec.Struct, kw_only=True):
    """The result of a batch, created once in S3: what it says is what the result is.

    Only `sequence` and `at_ms` (Unix milliseconds), which are those of its event, and the record
    may be written anew: when a change by a client has got that number meanwhile.
    """

    batch_id: str
    event: str
    #: The batch before its end.
    record: Mapping[str, str]
    sequence: int
    at_ms: int
    #: What the end writes into the record.
    fields: Mapping[str, str | int]
    output: Assembled | None = None
    error: Assembled | None = None
    files: list[dict[str, str | int]] = []
    #: The prefix of objects that nobody needs after the end, and what nobody needs a day later.
    garbage: str | None = None
    garbage_later: list[str] = []


class Cancellation(msgspec.Struct):
    """A cancellation that was told; its time in Unix seconds."""

    cancelling_at: int


def commit_key(batch_id: str, event: str) -> str:
    """Where the commit lies."""
    return f"batches/{batch_id}/commit-{event}.json"


def cancel_key(batch_id: str) -> str:
    """Where it is written that a batch is being cancelled."""
    return f"batches/{batch_id}/cancel.json"


async def read_commit(storage: Storage, batch_id: str, event: str) -> Commit:
    """The commit. Raises NotFoundError."""
    return msgspec.json.decode(await storage.get(commit_key(batch_id, event)), type=Commit)


async def create_commit(storage: Storage, commit: Commit) -> Commit:
    """Create the commit object. Returns it, or the one that was first."""
    key = commit_key(commit.batch_id, commit.event)
    if await storage.create(key, msgspec.json.encode(commit)):
        return commit
    return await read_commit(storage, commit.batch_id, commit.event)


async def carry_out(state: State, storage: Storage, commit: Commit) -> bool:
    """Let happen what the kept commit says; False when it has happened already.

    Raises InvalidTransitionError when the batch's status rules it out.
    """
    event = Event(commit.event)
    while True:
        pin = Pin(commit.sequence, commit.at_ms)
        try:
            if event in FAILURES:
                return await state.apply(commit.batch_id, event, commit.fields, pin=pin)
            return await state.conclude(
                commit.batch_id,
                event,
                files=commit.files,
                fields=commit.fields,
                garbage=commit.garbage,
                garbage_later=commit.garbage_later,
                pin=pin,
            )
        except MovedError:
            record, pin = await state.batches.pinned(commit.batch_id)
            commit = msgspec.structs.replace(commit, record=record.fields, **pin._asdict())
            key = commit_key(commit.batch_id, commit.event)
            await storage.put(key, msgspec.json.encode(commit))


async def fail(
    state: State,
    storage: Storage,
    batch_id: str,
    event: Event,
    fields: Mapping[str, str | int],
) -> bool:
    """End the batch by one of FAILURES; False when it has failed already.

    Raises as `State.apply` does; what was kept about a failure that did not happen is removed.
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
    """Let CANCEL_REQUESTED happen, and keep that it did: nobody who was told finds it undone.

    Returns False when it had happened already. Raises as `State.apply` does, and TransientError
    where a rebuild of Redis may undo it: it is to be asked for again.
    """
    is_new = await state.apply(batch_id, Event.CANCEL_REQUESTED)
    crash.point("commits.cancelled")
    cancellation = Cancellation(await _cancelling_at(state, batch_id))
    # Also of a repeat: whoever was first may have died before this.
    await storage.create(cancel_key(batch_id), msgspec.json.encode(cancellation))
    await state.restore.raise_if_under_way()
    # A whole rebuild may have gone by, and have looked before.
    await _cancelling_at(state, batch_id)
    return is_new


async def _cancelling_at(state: State, batch_id: str) -> int:
    if at := (await state.batches.get(batch_id)).number("cancelling_at"):
        return at
    raise TransientError(f"A rebuild of Redis has undone that batch {batch_id} is cancelled.")


class LaneFailure(msgspec.Struct):
    """A lane that was given up, of a batch that has others."""

    lane: str
    reason: str


def lane_failure_key(batch_id: str, lane: str) -> str:
    """Where that is kept."""
    digest = hashlib.sha256(lane.encode()).hexdigest()[:16]
    return f"batches/{batch_id}/lane-failed-{digest}.json"


async def save_lane_failure(storage: Storage, batch_id: str, lane: str, reason: str) -> None:
    """Keep that what the batch has on the lane is given up, before that happens."""
    failure = LaneFailure(lane, reason)
    await storage.put(lane_failure_key(batch_id, lane), msgspec.json.encode(failure))
