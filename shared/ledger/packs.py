"""Packs: one S3 object with the inputs, manifests and plans of batches that arrived together."""

import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec

from shared.errors import NotFoundError
from shared.ledger.manifests import Manifest, manifest_key
from shared.slices import Slice
from shared.storage import Storage

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


async def read_manifest(storage: Storage, batch_id: str, *, input_key: str = "") -> Manifest:
    """The batch's manifest. Raises NotFoundError.

    `input_key` is the S3 key of the batch's input, if known. If it is a pack, it has the manifest.
    """
    try:
        return msgspec.json.decode(await storage.get(manifest_key(batch_id)), type=Manifest)
    except NotFoundError:
        if not input_key.startswith(PACKS):
            raise
    for batch in await read_pack(storage, input_key):
        if batch.manifest.id == batch_id:
            return batch.manifest
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
    return b"".join(inputs) + msgspec.json.Encoder().encode_lines(batches)


async def read_pack(storage: Storage, key: str) -> list[PackedBatch]:
    """The batches in a pack, even if its inputs are gone. Raises NotFoundError."""
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


async def save_manifests(storage: Storage, key: str) -> None:
    """Write a pack's manifests to an object of their own, so that the pack can be removed."""
    with suppress(NotFoundError):
        await storage.put(without_inputs(key), pack((), await read_pack(storage, key)))


def is_pack(key: str) -> bool:
    """Whether this is a pack with inputs, which needs `save_manifests` before it is removed."""
    return key.startswith(PACKS) and not key.endswith("/") and key != without_inputs(key)


def without_inputs(key: str) -> str:
    """The S3 key under which `save_manifests` writes."""
    return f"{key.rpartition('/')[0]}/0.jsonl"
