"""A row that killed engines is run again, alone: as a batch of its own."""

import json
import time

from shared import ids
from shared.dead_rows import DeadRow
from shared.errors import NotFoundError
from shared.messages import window_seconds
from shared.request_lines import split
from shared.state import State
from shared.storage import Storage
from shared.submission import Manifest, accept

#: Of the new batch's metadata: whose request it runs again.
_LINK = "retry_of"


async def replay(state: State, storage: Storage, row: DeadRow) -> str:
    """Make the batch and forget the row; returns the batch's id, the same for each repeat.

    It has what the row's batch has: tenant, endpoint, window, priority and metadata, with the old
    id as `retry_of`. Raises NotFoundError when that batch or its input is gone.
    """
    batch = await state.batches.get(row.batch_id)
    line = await _line(storage, row)
    message_id = f"replay:{row.id}"
    new_id = ids.batch_id(row.tenant, message_id)
    key = f"batches/{new_id}/input-{row.id}.jsonl"
    stored = await storage.put(key, line + b"\n")
    now = int(time.time())
    window = batch.fields["completion_window"]
    metadata = {**json.loads(batch.fields.get("metadata", "{}")), _LINK: batch.id}
    manifest = Manifest(
        id=new_id,
        tenant=row.tenant,
        message_id=message_id,
        # One row has one request for ever.
        fingerprint=row.id,
        door="http",
        endpoint=batch.fields["endpoint"],
        input_file_id=ids.input_file_id(new_id),
        bucket=storage.bucket,
        key=key,
        etag=stored.etag,
        size=stored.size,
        completion_window=window,
        created_at=now,
        expires_at=now + window_seconds(window),
        priority=batch.number("priority"),
        metadata=json.dumps(metadata),
        output_seconds=batch.number("output_seconds"),
        is_foreign=True,
    )
    await accept(state, storage, manifest)
    await state.dead_rows.drop(row.id)
    return new_id


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
