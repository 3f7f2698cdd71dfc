"""Packs: one S3 object with the inputs, manifests and plans of batches that arrived together.

Those of batches that came by HTTP have manifests only.
"""

import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec
import structlog

from shared.errors import BrokenObjectError, NotFoundError
from shared.ledger.manifests import Manifest, manifest_key
from shared.ledger.quarantine import keep_copy
from shared.ledger.records import decoded, encoded, read_record
from shared.slices import Slice
from shared.storage import Storage

log = structlog.get_logger()

#: The prefix of packs. A pack starts with the inputs. From the byte in its name on, each line
#: is a PackedBatch. A pack never changes: later changes are in a batch's own manifest.
PACKS = "packs/"


class PackedPlan(msgspec.Struct, frozen=True):
    """How a batch is cut, and the fields that its start writes, which may happen later."""

    fields: Mapping[str, str | int]
    slices: Sequence[Slice]


class PackedBatch(msgspec.Struct, frozen=True):
    """A line of a pack."""

    manifest: Manifest
    plan: PackedPlan | None = None
    #: How many lines the pack has; 0 in packs of versions that did not say.
    lines: int = 0


class PackContent(NamedTuple):
    """What can be read of a pack, and how many of its lines cannot."""

    batches: list[PackedBatch]
    broken: int


def pack_of(record: Mapping[str, str]) -> str:
    """The S3 key of the pack that has the batch's first manifest; empty if none has.

    A batch by HTTP over an input that came in a message names the pack of that input, too.
    """
    key = record.get("key", "")
    return record.get("pack") or (key if key.startswith(PACKS) else "")


async def read_manifest(storage: Storage, batch_id: str, *, pack: str = "") -> Manifest:
    """The batch's manifest: its own, else the one in `pack`, the key of its pack if it has one.

    Raises NotFoundError and BrokenObjectError.
    """
    key = manifest_key(batch_id)
    try:
        manifest = await read_record(storage, key, Manifest)
    except NotFoundError:
        if not pack:
            raise
    else:
        if manifest.id != batch_id:
            raise BrokenObjectError(key, "it is the manifest of another batch")
        return manifest
    content = await read_pack_content(storage, pack)
    for batch in content.batches:
        if batch.manifest.id == batch_id:
            return batch.manifest
    if content.broken:
        raise BrokenObjectError(pack, f"{content.broken} of its lines cannot be read")
    raise NotFoundError(f"No manifest found of batch '{batch_id}'.")


def pack_prefix() -> str:
    """The prefix of a new pack. Sorted packs are in the order of their creation."""
    return f"{PACKS}{int(time.time() * 1000):012x}-{secrets.token_hex(8)}/"


def placed(
    prefix: str, bucket: str, batches: Sequence[tuple[Manifest, bytes]]
) -> list[tuple[Manifest, bytes]]:
    """The same batches, with the place of each input in their common pack."""
    key = f"{prefix}{sum(len(body) for _, body in batches)}.jsonl"
    found, start = [], 0
    for manifest, body in batches:
        place = {"bucket": bucket, "key": key, "start": start, "size": len(body)}
        found.append((msgspec.structs.replace(manifest, **place), body))
        start += len(body)
    return found


def pack(inputs: Sequence[bytes], batches: Sequence[PackedBatch]) -> bytes:
    """The bytes of a pack of batches that already have their places."""
    count = len(batches)
    lines = [encoded(msgspec.structs.replace(one, lines=count)) + b"\n" for one in batches]
    return b"".join((*inputs, *lines))


async def read_pack(storage: Storage, key: str) -> list[PackedBatch]:
    """The batches in a pack, even if its inputs are gone.

    Raises NotFoundError, and BrokenObjectError if any line cannot be read.
    """
    content = await read_pack_content(storage, key)
    if content.broken:
        raise BrokenObjectError(key, f"{content.broken} of its lines cannot be read")
    return content.batches


async def read_pack_content(storage: Storage, key: str) -> PackContent:
    """What can be read of a pack. Raises NotFoundError, and BrokenObjectError if it is nothing."""
    try:
        found = await storage.stat(key)
    except NotFoundError:
        key = without_inputs(key)
        found = await storage.stat(key)
    first = key.rpartition("/")[2].removesuffix(".jsonl")
    if not first.isdigit() or found.size <= int(first):
        raise BrokenObjectError(key, f"it was cut off after {found.size} bytes")
    body = await storage.get(key, start=int(first), end=found.size, etag=found.etag)
    lines = [line for line in body.split(b"\n") if line]
    batches = []
    for line in lines:
        with suppress(BrokenObjectError):
            batch = decoded(key, line, PackedBatch)
            if without_inputs(batch.manifest.key) == without_inputs(key):
                manifest = msgspec.structs.replace(batch.manifest, etag=found.etag)
                batch = msgspec.structs.replace(batch, manifest=manifest)
            batches.append(batch)
    wanted = max([len(lines), *(batch.lines for batch in batches)])
    if not batches:
        raise BrokenObjectError(key, "none of its lines can be read")
    return PackContent(batches, wanted - len(batches))


async def save_manifests(storage: Storage, key: str) -> None:
    """Write a pack's manifests to an object of their own, so that the pack can be removed.

    Of a damaged pack, a copy stays in the quarantine.
    """
    try:
        content = await read_pack_content(storage, key)
    except NotFoundError:
        return
    except BrokenObjectError as error:
        log.error("pack.broken", key=key, reason=error.reason)  # noqa: TRY400  # the reason says it all
        await keep_copy(storage, key)
        return
    if content.broken:
        log.error("pack.broken", key=key, lines=content.broken)
        await keep_copy(storage, key)
    await storage.put(without_inputs(key), pack((), content.batches))


def is_pack(key: str) -> bool:
    """Whether this is a pack with inputs, which needs `save_manifests` before it is removed."""
    return key.startswith(PACKS) and not key.endswith("/") and key != without_inputs(key)


def without_inputs(key: str) -> str:
    """The S3 key under which `save_manifests` writes, and that packs without inputs have."""
    return f"{key.rpartition('/')[0]}/0.jsonl"
