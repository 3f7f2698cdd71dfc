"""How a batch comes into being: its manifest first, then its record.

Every step can be repeated from any point, by any process.
"""

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from shared import crash
from shared.bus.messages import READY
from shared.errors import ConflictError
from shared.ledger.manifests import Manifest, manifest_key
from shared.ledger.packs import PACKS, read_manifest
from shared.state import FileRecord, NewBatch, Start, State
from shared.storage import Storage

#: What an idempotency key of HTTP begins with as a message id; no caller needs to see it.
HTTP_KEY = "http:"


class Accepted(NamedTuple):
    """The batch that a submission made, or met."""

    batch_id: str
    is_duplicate: bool


async def accept(
    state: State, storage: Storage, manifest: Manifest, *, reply: Mapping[str, str] | None = None
) -> Accepted:
    """Make the batch; safe to repeat from any point, by anybody. `reply` as `Batches.accept` says.

    Raises ConflictError when the message id stands for a batch with another body.
    """
    encoded = msgspec.json.encode(manifest)
    if not await storage.create(manifest_key(manifest.id), encoded):
        first = await read_manifest(storage, manifest.id)
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
        submission=_message(manifest) if manifest.door == "http" else None,
        reply=reply,
    )
    crash.point("submission.accepted")
    return Accepted(manifest.id, outcome == "duplicate")


async def accept_known(
    state: State,
    batch_id: str,
    message_id: str,
    fingerprint: str,
    reply: Mapping[str, str] | None,
) -> None:
    """`accept` of a batch that Redis knows. Raises ConflictError."""
    outcome = await state.batches.accept(
        batch_id, fingerprint, {}, input_file=None, submission=None, reply=reply
    )
    if outcome == "conflict":
        raise conflict(message_id)


def new_batch(
    manifest: Manifest, *, reply: Mapping[str, str] | None = None, start: Start | None = None
) -> NewBatch:
    """What Redis is to know of it."""
    file = to_input_file(manifest).to_fields() if manifest.is_foreign else None
    return NewBatch(manifest.id, manifest.fingerprint, to_record(manifest), file, reply, start)


def conflict(message_id: str) -> ConflictError:
    """The error for a second batch of other parameters under one idempotency key."""
    return ConflictError(
        f"A batch with the idempotency key '{message_id.removeprefix(HTTP_KEY)}' exists with "
        "other parameters: this is a conflict. Use another key for another batch."
    )


def to_record(manifest: Manifest) -> dict[str, str | int]:
    """What the record of a new batch has of its manifest."""
    fields = msgspec.to_builtins(manifest)
    for name in ("fingerprint", "is_foreign", "paused", "is_changed"):
        del fields[name]
    # A flag is there or not; Redis knows texts and numbers only.
    fields["deliver_results"] = 1 if manifest.deliver_results else ""
    for name in ("start", "file_seconds", "strikes"):
        fields[name] = fields[name] or ""
    return {name: value for name, value in fields.items() if value != ""}


def to_input_file(manifest: Manifest) -> FileRecord:
    """The file of an input that came as an object, or in a message."""
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
    """What the relay publishes for a batch that came by HTTP: the batch is there, plan it."""
    return msgspec.json.encode(
        {"type": READY, "tenant": manifest.tenant, "batch_id": manifest.id}
    ).decode()
