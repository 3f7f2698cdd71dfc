"""How a batch comes into being, the same through every door: manifest first, then the record.

The manifest in S3 is created once and for ever. Only what a client may change of a batch is changed
in it. Batches that come together by the bus share one object, a pack.
"""

import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

import msgspec

from shared import crash
from shared.bus.messages import READY
from shared.errors import ConflictError, NotFoundError
from shared.slices import Slice
from shared.state import BatchRecord, FileRecord, NewBatch, Start, State
from shared.storage import Storage

#: What an idempotency key of HTTP begins with as a message id; no caller needs to see it.
HTTP_KEY = "http:"
#: Where packs lie. One has inputs, one after the other, and from the byte in its name on a
#: PackedBatch a line. It is never changed: what is changed later stands in a batch's own manifest.
PACKS = "packs/"


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
    #: Whether the input is an object that has no file record yet.
    is_foreign: bool = False
    #: How long that file record lasts; 0 for ever.
    file_seconds: int = 0
    #: Whether small results are to travel in the last event.
    deliver_results: bool = False
    paused: bool = False
    #: Whether a client has changed it since its creation.
    is_changed: bool = False
    #: Where the input begins in its object. In a pack the ETag is left out: it is the pack's own.
    start: int = 0
    #: With how many each of its rows begins, as if so many engines had died with it.
    strikes: int = 0


class Accepted(NamedTuple):
    """The batch that a submission made, or met."""

    batch_id: str
    is_duplicate: bool


def batch_folder(batch_id: str) -> str:
    """The prefix of all that is written about a batch, but for its line in a pack."""
    return f"batches/{batch_id}/"


def manifest_key(batch_id: str) -> str:
    """Where a batch's manifest lies."""
    return f"{batch_folder(batch_id)}manifest.json"


async def read_manifest(storage: Storage, batch_id: str, *, input_key: str = "") -> Manifest:
    """The batch's manifest. Raises NotFoundError.

    `input_key` is that of its input, if it is known: a pack has the manifest as well.
    """
    try:
        return msgspec.json.decode(await storage.get(manifest_key(batch_id)), type=Manifest)
    except NotFoundError:
        if not input_key.startswith(PACKS):
            raise
    for batch in await read_pack(storage, input_key):
        if batch.manifest.id == batch_id:
            return batch.manifest
    raise NotFoundError(f"There is no manifest of batch '{batch_id}'.")


class PackedPlan(msgspec.Struct, frozen=True):
    """How a batch was cut, and what its start writes into the record; perhaps it has to wait."""

    fields: Mapping[str, str | int]
    slices: Sequence[Slice]


class PackedBatch(msgspec.Struct, frozen=True):
    """A line of a pack."""

    manifest: Manifest
    plan: PackedPlan | None = None


def pack_prefix() -> str:
    """Of a new pack; sorted, packs are in the order in which they were made."""
    return f"{PACKS}{int(time.time() * 1000):012x}-{secrets.token_hex(8)}/"


def placed(
    prefix: str, bucket: str, batches: Sequence[tuple[Manifest, bytes]]
) -> list[tuple[Manifest, bytes]]:
    """The same, with the place that each input has in a pack of them."""
    key = f"{prefix}{sum(len(body) for _, body in batches)}.jsonl"
    found, start = [], 0
    for manifest, body in batches:
        place = {"bucket": bucket, "key": key, "start": start, "size": len(body)}
        found.append((msgspec.structs.replace(manifest, **place), body))
        start += len(body)
    return found


def pack(inputs: Sequence[bytes], batches: Sequence[PackedBatch]) -> bytes:
    """The object of batches whose places are known."""
    return b"".join(inputs) + msgspec.json.Encoder().encode_lines(batches)


async def read_pack(storage: Storage, key: str) -> list[PackedBatch]:
    """The batches in a pack, also when its inputs are gone. Raises NotFoundError."""
    try:
        found = await storage.stat(key)
    except NotFoundError:
        key = without_inputs(key)
        found = await storage.stat(key)
    first = int(key.rpartition("/")[2].removesuffix(".jsonl"))
    lines = await storage.get(key, start=first, end=found.size, etag=found.etag)
    batches: list[PackedBatch] = msgspec.json.Decoder(PackedBatch).decode_lines(lines)
    return [
        PackedBatch(msgspec.structs.replace(batch.manifest, etag=found.etag), batch.plan)
        for batch in batches
    ]


async def keep_manifests(storage: Storage, key: str) -> None:
    """Write a pack's manifests apart, so that the pack can be removed; safe to repeat."""
    with suppress(NotFoundError):
        await storage.put(without_inputs(key), pack((), await read_pack(storage, key)))


def is_pack(key: str) -> bool:
    """Whether it is an object with inputs that must not go without `keep_manifests`."""
    return key.startswith(PACKS) and not key.endswith("/") and key != without_inputs(key)


def without_inputs(key: str) -> str:
    """Where `keep_manifests` writes what it keeps of a pack."""
    return f"{key.rpartition('/')[0]}/0.jsonl"


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


async def meet(
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


async def keep_changes(state: State, storage: Storage, batch_id: str) -> BatchRecord:
    """Write priority, metadata and pause, as they are by now, into the batch's manifest as well.

    Of two that change a batch at once, the later one's wish stands in the end; safe to repeat.
    Returns the record. Raises NotFoundError when there is no such batch, and TransientError where a
    rebuild of Redis may undo the change.
    """
    record = await state.batches.get(batch_id)
    while True:
        try:
            key = record.fields.get("key", "")
            manifest = await read_manifest(storage, batch_id, input_key=key)
        except NotFoundError:
            # It is lost, and what is left of it in Redis is no reason to refuse the change.
            return record
        changed = msgspec.structs.replace(manifest, **_changeable(record))
        if changed != manifest:
            changed = msgspec.structs.replace(changed, is_changed=True)
            await storage.put(manifest_key(batch_id), msgspec.json.encode(changed))
        await state.restore.raise_if_under_way()
        now = await state.batches.get(batch_id)
        if _changeable(now) == _changeable(record):
            return now
        record = now


async def single_out(state: State, storage: Storage, batch_id: str) -> None:
    """Give the batch a manifest of its own, for there may be another one of it in a pack."""
    record = await state.batches.get(batch_id)
    manifest = await read_manifest(storage, batch_id, input_key=record.fields["key"])
    await storage.create(manifest_key(batch_id), msgspec.json.encode(manifest))


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
