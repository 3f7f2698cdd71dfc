"""Reruns a row that killed engines, alone in a batch of its own."""

import json
import time

import msgspec

from shared import ids
from shared.bus.messages import window_seconds
from shared.dead_rows import DeadRow
from shared.errors import NotFoundError
from shared.input.request_lines import split
from shared.ledger.manifests import RETRY_OF, Manifest
from shared.ledger.packs import PackedBatch, pack, pack_prefix, placed
from shared.retention import RESERVED_SECONDS
from shared.settings import THIRTY_DAYS
from shared.state import State
from shared.storage import Storage
from shared.submission.accept import new_batch

#: From this many strikes on, a row runs alone in its engine (`worker/strikes.py`). A row that still
#: kills engines gets its last strikes from engines that ran nobody else's rows.
_STRIKES = 2


async def replay(state: State, storage: Storage, row: DeadRow) -> str:
    """Create the batch and drop the dead row. Returns the batch's id, the same for each repeat.

    The batch has the tenant, endpoint, window, priority and metadata of the row's batch, whose id
    is added as `retry_of`. Raises NotFoundError if that batch or its input is gone.
    """
    batch = await state.batches.get(row.batch_id)
    line = await _line(storage, row)
    message_id = f"replay:{row.id}"
    new_id = ids.batch_id(row.tenant, message_id)
    now = int(time.time())
    window = batch.fields["completion_window"]
    metadata = {**json.loads(batch.fields.get("metadata", "{}")), RETRY_OF: batch.id}
    manifest = Manifest(
        id=new_id,
        tenant=row.tenant,
        message_id=message_id,
        # The request of a row never changes.
        fingerprint=row.id,
        door="bus",
        endpoint=batch.fields["endpoint"],
        input_file_id=ids.input_file_id(new_id),
        # `placed` fills these in.
        bucket="",
        key="",
        etag="",
        size=0,
        completion_window=window,
        created_at=now,
        expires_at=now + window_seconds(window),
        priority=batch.number("priority"),
        metadata=json.dumps(metadata),
        output_seconds=batch.number("output_seconds"),
        is_foreign=True,
        file_seconds=THIRTY_DAYS,
        strikes=_STRIKES,
    )
    await _accept(state, storage, manifest, line + b"\n")
    await state.dead_rows.drop(row.id)
    return new_id


async def _accept(state: State, storage: Storage, manifest: Manifest, body: bytes) -> None:
    """Create the batch in a pack of its own, which is swept when its input is no longer needed.

    If the batch exists already, the pack is garbage at once.
    """
    prefix = pack_prefix()
    await state.files.reserve(prefix, seconds=RESERVED_SECONDS)
    [(manifest, _)] = placed(prefix, storage.bucket, [(manifest, body)])
    stored = await storage.put(manifest.key, pack([body], [PackedBatch(manifest)]))
    batch = new_batch(msgspec.structs.replace(manifest, etag=stored.etag))
    [outcome] = await state.batches.accept_pack(prefix, [batch])
    if isinstance(outcome, Exception):
        raise outcome


async def _line(storage: Storage, row: DeadRow) -> bytes:
    try:
        body = await storage.get(
            row.key,
            start=row.start,
            end=row.end,
            etag=row.etag,
            bucket=row.bucket,
            version_id=row.version_id,
        )
    except NotFoundError as error:
        raise NotFoundError(
            f"The request of {row.id} cannot be read: the input of batch {row.batch_id} was "
            "deleted or changed."
        ) from error
    return split(body)[row.place]
