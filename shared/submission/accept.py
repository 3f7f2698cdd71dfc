"""Creates a batch: its manifest in S3 first, then its record in Redis.

Any process may repeat any step.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import structlog

from shared import crash
from shared.bus.messages import READY
from shared.errors import BrokenObjectError, ConflictError, NotFoundError
from shared.ledger.manifests import Manifest, manifest_key, to_manifest
from shared.ledger.packs import PACKS, read_manifest
from shared.ledger.plans import set_plan_aside
from shared.ledger.quarantine import keep_copy
from shared.ledger.records import encoded
from shared.lifecycle import Status
from shared.state import BatchRecord, FileRecord, NewBatch, Start, State
from shared.storage import Storage

log = structlog.get_logger()

#: The prefix of a message id made from an HTTP idempotency key. It is not shown to callers.
HTTP_KEY = "http:"


class Accepted(NamedTuple):
    """The batch that a submission created or found."""

    batch_id: str
    is_duplicate: bool
    #: As it was created; None if it was found.
    created: BatchRecord | None


async def accept(
    state: State, storage: Storage, manifest: Manifest, *, reply: Mapping[str, str] | None = None
) -> Accepted:
    """Create the batch. Safe to repeat. For `reply`, see `Batches.accept`.

    Raises ConflictError if the message id was already used for a batch with another body.
    """
    if not await storage.create(manifest_key(manifest.id), encoded(manifest)):
        try:
            first = await read_manifest(storage, manifest.id)
        except BrokenObjectError as error:
            first = await _mended(state, storage, manifest, error)
        if first.fingerprint != manifest.fingerprint:
            raise conflict(manifest.message_id)
        manifest = first
    crash.point("submission.manifest_created")
    batch = new_batch(manifest, reply=reply)
    outcome = await state.batches.accept(
        batch.id,
        batch.fingerprint,
        batch.fields,
        input_file=batch.input_file,
        submission=batch.submission,
        reply=reply,
    )
    crash.point("submission.accepted")
    created = created_record(batch) if outcome == "accepted" else None
    return Accepted(manifest.id, outcome == "duplicate", created)


def created_record(batch: NewBatch) -> BatchRecord:
    """The record that Redis has of a batch that has just been created."""
    texts = {name: str(value) for name, value in batch.fields.items()}
    return BatchRecord({"status": Status.VALIDATING, **texts})


async def _mended(
    state: State, storage: Storage, manifest: Manifest, error: BrokenObjectError
) -> Manifest:
    """Put a manifest in the place of the damaged one: as Redis has it, else the caller's."""
    log.error("manifest.broken", batch_id=manifest.id, key=error.key, reason=error.reason)
    try:
        manifest = to_manifest((await state.batches.get(manifest.id)).fields)
    except NotFoundError:
        # What came of the damaged one may belong to another request.
        await set_plan_aside(storage, manifest.id)
    await keep_copy(storage, error.key)
    await storage.put(error.key, encoded(manifest))
    return manifest


async def accept_known(
    state: State,
    batch_id: str,
    message_id: str,
    fingerprint: str,
    reply: Mapping[str, str] | None,
) -> None:
    """`accept` for a batch that Redis already knows. Raises ConflictError."""
    outcome = await state.batches.accept(
        batch_id, fingerprint, {}, input_file=None, submission=None, reply=reply
    )
    if outcome == "conflict":
        raise conflict(message_id)


def new_batch(
    manifest: Manifest, *, reply: Mapping[str, str] | None = None, start: Start | None = None
) -> NewBatch:
    """The batch as `Batches.accept` takes it."""
    file = to_input_file(manifest).to_fields() if manifest.is_foreign else None
    submission = _message(manifest) if manifest.door == "http" else None
    return NewBatch(
        manifest.id, manifest.fingerprint, to_record(manifest), file, reply, start, submission
    )


def conflict(message_id: str) -> ConflictError:
    """The error for a second batch with other parameters under one idempotency key."""
    return ConflictError(
        f"A batch with the idempotency key '{message_id.removeprefix(HTTP_KEY)}' exists with "
        "other parameters: this is a conflict. Use another key for another batch."
    )


def to_record(manifest: Manifest) -> dict[str, str | int]:
    """The fields that a new batch's record takes from its manifest."""
    fields = msgspec.to_builtins(manifest)
    for name in ("fingerprint", "is_foreign", "paused", "is_changed"):
        del fields[name]
    # Redis has no booleans, so a flag that is off is left out.
    fields["deliver_results"] = 1 if manifest.deliver_results else ""
    for name in ("start", "file_seconds", "strikes", "cache_seconds"):
        fields[name] = fields[name] or ""
    return {name: value for name, value in fields.items() if value != ""}


def to_input_file(manifest: Manifest) -> FileRecord:
    """The file record of an input that is an object of the client, or came in a message."""
    filename = manifest.key.rpartition("/")[2]
    if manifest.key.startswith(PACKS):
        filename = f"input-{manifest.fingerprint[:16]}.jsonl"
    return FileRecord(
        id=manifest.input_file_id,
        tenant=manifest.tenant,
        bytes=manifest.size,
        created_at=manifest.created_at,
        expires_at=manifest.created_at + manifest.file_seconds if manifest.file_seconds else None,
        filename=filename,
        purpose="batch",
        bucket=manifest.bucket,
        key=manifest.key,
        etag=manifest.etag,
        owned=False,
        start=manifest.start,
    )


def _message(manifest: Manifest) -> str:
    """The message that makes a dispatcher plan a batch that came over HTTP."""
    message = {"type": READY, "tenant": manifest.tenant, "batch_id": manifest.id}
    if manifest.pack:
        message["pack"] = manifest.pack
    if manifest.traceparent:
        message["traceparent"] = manifest.traceparent
    return msgspec.json.encode(message).decode()
