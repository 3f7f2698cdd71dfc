"""Changes that a client makes to a batch: its manifest keeps priority, metadata and pause."""

import msgspec
import structlog

from shared.errors import BrokenObjectError, NotFoundError
from shared.ledger.manifests import manifest_key, to_manifest
from shared.ledger.packs import pack_of, read_manifest
from shared.ledger.quarantine import keep_copy
from shared.ledger.records import encoded
from shared.state import BatchRecord, State
from shared.storage import Storage

log = structlog.get_logger()


async def save_changes(state: State, storage: Storage, batch_id: str) -> BatchRecord:
    """Write the batch's current priority, metadata and pause into its manifest. Safe to repeat.

    If two clients change a batch at once, the later change wins. Returns the record. Raises
    NotFoundError if there is no such batch, and TransientError if a rebuild of Redis may undo the
    change.
    """
    record = await state.batches.get(batch_id)
    while True:
        try:
            pack = pack_of(record.fields)
            manifest = await read_manifest(storage, batch_id, pack=pack)
        except BrokenObjectError as error:
            log.error("manifest.broken", batch_id=batch_id, key=error.key, reason=error.reason)  # noqa: TRY400  # the reason says it all
            await keep_copy(storage, error.key)
            manifest = to_manifest(record.fields)
            await storage.put(manifest_key(batch_id), encoded(manifest))
        except NotFoundError:
            # The manifest is lost, which is no reason to refuse the change in Redis.
            return record
        changed = msgspec.structs.replace(manifest, **_changeable(record))
        if changed != manifest:
            changed = msgspec.structs.replace(changed, is_changed=True)
            await storage.put(manifest_key(batch_id), encoded(changed))
        await state.restore.raise_if_under_way()
        now = await state.batches.get(batch_id)
        if _changeable(now) == _changeable(record):
            return now
        record = now


async def unpack_manifest(state: State, storage: Storage, batch_id: str) -> None:
    """Write a manifest of the batch's own. Another one may be in a pack."""
    record = await state.batches.get(batch_id)
    manifest = await read_manifest(storage, batch_id, pack=pack_of(record.fields))
    await storage.create(manifest_key(batch_id), encoded(manifest))


def _changeable(record: BatchRecord) -> dict[str, str | int | bool]:
    return {
        "priority": record.number("priority"),
        "metadata": record.fields.get("metadata", ""),
        "paused": "paused" in record.fields,
    }
