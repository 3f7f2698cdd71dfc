"""Manifests of batches: found in a bucket."""

from collections.abc import AsyncGenerator

from shared.storage import Storage
from shared.submission import PACKS, Manifest, read_manifest, read_pack


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
