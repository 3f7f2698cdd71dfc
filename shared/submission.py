"""How a batch comes into being, the same through every door: manifest first, then the record.

The manifest in S3 is created once and for ever: it is the permanent deduplication. Only what a
client may change of a batch is changed in it.
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

import msgspec

from shared import crash
from shared.errors import ConflictError, NotFoundError
from shared.messages import READY
from shared.state import BatchRecord, FileRecord, State
from shared.storage import Storage

#: What an idempotency key of HTTP begins with as a message id; no caller needs to see it.
HTTP_KEY = "http:"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """All that a batch is before anything happens to it. Times are Unix seconds."""

    id: str
    tenant: str
    message_id: str
    #: Of what the client asked for; another one under the same message id is a conflict.
    fingerprint: str
    door: Literal["http", "bus"]
    endpoint: str
    input_file_id: str
    bucket: str
    key: str
    etag: str
    size: int
    completion_window: str
    created_at: int
    expires_at: int
    priority: int = 5
    metadata: str = ""
    correlation_id: str = ""
    reply_to: str = ""
    #: W3C's, of the message that asked for the batch.
    traceparent: str = ""
    tracestate: str = ""
    #: Further pins of the input besides its ETag.
    version_id: str = ""
    sha256: str = ""
    output_seconds: int = 0
    #: Whether the input is an object of the tenant's own that has no file record yet.
    is_foreign: bool = False
    #: Whether small results are to travel in the last event.
    deliver_results: bool = False
    paused: bool = False
    #: Whether a client has changed it since its creation.
    is_changed: bool = False


class Accepted(NamedTuple):
    """The batch that a submission made, or met."""

    batch_id: str
    is_duplicate: bool


def manifest_key(batch_id: str) -> str:
    """Where a batch's manifest lies."""
    return f"batches/{batch_id}/manifest.json"


async def read_manifest(storage: Storage, batch_id: str) -> Manifest:
    """The batch's manifest. Raises NotFoundError."""
    return msgspec.json.decode(await storage.get(manifest_key(batch_id)), type=Manifest)


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
    outcome = await state.batches.accept(
        manifest.id,
        manifest.fingerprint,
        to_record(manifest),
        input_file=to_input_file(manifest).to_fields() if manifest.is_foreign else None,
        submission=_message(manifest) if manifest.door == "http" else None,
        reply=reply,
    )
    crash.point("submission.accepted")
    return Accepted(manifest.id, outcome == "duplicate")


async def keep_changes(state: State, storage: Storage, batch_id: str) -> BatchRecord:
    """Write priority, metadata and pause, as they are by now, into the batch's manifest as well.

    Of two that change a batch at once, the later one's wish stands in the end; safe to repeat.
    Returns the record. Raises NotFoundError when there is no such batch.
    """
    record = await state.batches.get(batch_id)
    while True:
        try:
            manifest = await read_manifest(storage, batch_id)
        except NotFoundError:
            # It is lost, and what is left of it in Redis is no reason to refuse the change.
            return record
        changed = msgspec.structs.replace(manifest, **_changeable(record))
        if changed != manifest:
            changed = msgspec.structs.replace(changed, is_changed=True)
            await storage.put(manifest_key(batch_id), msgspec.json.encode(changed))
        now = await state.batches.get(batch_id)
        if _changeable(now) == _changeable(record):
            return now
        record = now


def conflict(message_id: str) -> ConflictError:
    """The error for a second batch of other parameters under one idempotency key."""
    return ConflictError(
        f"A batch with the idempotency key '{message_id.removeprefix(HTTP_KEY)}' exists with "
        "other parameters: this is a conflict. Use another key for another batch."
    )


def _changeable(record: BatchRecord) -> dict[str, str | int | bool]:
    return {
        "priority": record.number("priority"),
        "metadata": record.fields.get("metadata", ""),
        "paused": "paused" in record.fields,
    }


def to_record(manifest: Manifest) -> dict[str, str | int]:
    """What the record of a new batch has of its manifest."""
    fields = msgspec.to_builtins(manifest)
    for name in ("fingerprint", "is_foreign", "paused", "is_changed"):
        del fields[name]
    # A flag is there or not; Redis knows texts and numbers only.
    fields["deliver_results"] = 1 if manifest.deliver_results else ""
    return {name: value for name, value in fields.items() if value != ""}


def to_input_file(manifest: Manifest) -> FileRecord:
    """The file of an input that came as an object, or in a message."""
    return FileRecord(
        id=manifest.input_file_id,
        tenant=manifest.tenant,
        bytes=manifest.size,
        created_at=manifest.created_at,
        expires_at=None,
        filename=manifest.key.rpartition("/")[2],
        purpose="batch",
        bucket=manifest.bucket,
        key=manifest.key,
        etag=manifest.etag,
        owned=False,
    )


def _message(manifest: Manifest) -> str:
    """What the relay publishes for a batch that came by HTTP: the batch is there, plan it."""
    return msgspec.json.encode(
        {"type": READY, "tenant": manifest.tenant, "batch_id": manifest.id}
    ).decode()
