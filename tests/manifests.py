"""Manifests of batches: made with defaults, and found in a bucket."""

import time
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import msgspec

from dispatcher.packing import InlineBatch
from shared import ids
from shared.ledger.manifests import Manifest
from shared.ledger.packs import PACKS, read_manifest, read_pack
from shared.storage import Storage
from tests.batches import batch_fields


def a_manifest(message_id: str = "m-1", *, tenant: str = "acme", **changes: Any) -> Manifest:
    """As of a batch by HTTP, over an input that is not there."""
    batch_id = ids.batch_id(tenant, message_id)
    fields: dict[str, Any] = batch_fields(batch_id, tenant=tenant, message_id=message_id)
    return Manifest(**{**fields, "fingerprint": "print", **changes})


def today() -> dict[str, Any]:
    """Of a manifest whose window is open, a day from now on."""
    now = int(time.time())
    return {"created_at": now, "expires_at": now + 86_400}


def inline(
    message_id: str, body: bytes, *, reply: Mapping[str, str] | None = None, **changes: Any
) -> InlineBatch:
    """As the intake makes it of a message, with an input that is still to be packed."""
    fields: dict[str, Any] = {"door": "bus", "is_foreign": True, **today(), **changes}
    unplaced: dict[str, Any] = {"bucket": "", "key": "", "etag": "", "size": 0}
    manifest = a_manifest(message_id, **unplaced, **fields)
    file_id = ids.input_file_id(manifest.id)
    return InlineBatch(msgspec.structs.replace(manifest, input_file_id=file_id), body, reply)


async def every_manifest(storage: Storage) -> AsyncGenerator[Manifest, None]:
    """The manifest of each batch of the bucket, once.

    A batch's own counts before one in a pack; of several in packs, the first.
    """
    own = [key for key in await storage.keys("batches/") if key.endswith("/manifest.json")]
    seen = set()
    for key in own:
        manifest = await read_manifest(storage, key.split("/")[1])
        seen.add(manifest.id)
        yield manifest
    for key in sorted(await storage.keys(PACKS)):
        for batch in await read_pack(storage, key):
            if batch.manifest.id not in seen:
                seen.add(batch.manifest.id)
                yield batch.manifest
