"""Makes the commit of an ended batch again from its result files, when its own is damaged."""

import hashlib
from contextlib import aclosing, suppress
from functools import partial

from cli.rebuild.from_s3 import BatchObjects
from shared import ids
from shared.errors import BrokenObjectError, NotFoundError
from shared.ledger.commits import FAILURES, Assembled, Commit, failure_fields
from shared.ledger.endings import new_commit
from shared.ledger.manifests import Manifest
from shared.ledger.tables import (
    MadeTable,
    read_success,
    table_file_id,
    unwritten_table,
    wanted_of,
)
from shared.lifecycle import TRANSITIONS, Event, Status
from shared.settings import THIRTY_DAYS
from shared.state import BatchRecord, Pin
from shared.storage import Storage
from shared.submission.accept import to_record

_REASON = "The batch failed. The record of why was damaged; `retry` runs its requests again."
_NAMES = {"output": ("output",), "error": ("error", "error-without-names")}


async def commit_again(
    storage: Storage, found: BatchObjects, manifest: Manifest, event: Event, *, base: int
) -> Commit:
    """The commit of a batch that ended by `event`, with what can still be known of it.

    Its event gets the number `base`, which no event has.
    """
    at = int(found.written[f"commit-{event}.json"])
    status = _status_before(event)
    record: dict[str, str | int] = {
        "fingerprint": manifest.fingerprint,
        **to_record(manifest),
        "status": status,
        f"{status}_at": at,
        "in_progress_at": manifest.created_at,
    }
    pin = Pin(base, at * 1000)
    if event in FAILURES:
        return Commit(
            batch_id=manifest.id,
            event=event,
            record=_texts(record),
            fields=failure_fields("record_damaged", _REASON),
            **pin._asdict(),
        )
    files = {kind: await _result(storage, found, event, kind) for kind in _NAMES}
    record["total"] = sum(file.rows for file in files.values() if file is not None)
    return new_commit(
        BatchRecord(_texts(record)),
        event,
        pin,
        output=files["output"],
        error=files["error"],
        bucket=storage.bucket,
        output_seconds=THIRTY_DAYS,
        table=await _table(storage, manifest, event),
    )


def _status_before(event: Event) -> Status:
    sources = TRANSITIONS[event].sources
    return next(status for status in Status if status in sources)


def _texts(fields: dict[str, str | int]) -> dict[str, str]:
    return {name: str(value) for name, value in fields.items()}


async def _table(storage: Storage, manifest: Manifest, event: Event) -> MadeTable | None:
    """The table that the batch has made, where it was wanted or beside its results."""
    if not manifest.output:
        return None
    wanted = wanted_of(manifest.output)
    for is_ours in (True, False) if wanted.destination is not None else (True,):
        table = unwritten_table(manifest.id, event, wanted, storage.bucket, is_ours=is_ours)
        with suppress(NotFoundError, BrokenObjectError):
            return await read_success(
                storage.of_bucket(table.bucket), table, partial(table_file_id, manifest.id)
            )
    return None


async def _result(
    storage: Storage, found: BatchObjects, event: Event, kind: str
) -> Assembled | None:
    """The result file of this kind, which may be the batch's only part."""
    for name in _NAMES[kind]:
        if f"{event}/{name}.jsonl" in found.written:
            key = f"batches/{found.batch_id}/{event}/{name}.jsonl"
            return await _read(storage, found.batch_id, kind, key)
    has_files = any(name.startswith(f"{event}/") for name in found.written)
    if has_files or set(found.parts) != {0}:
        return None
    _, part = found.parts[0]
    try:
        output_bytes = int((await storage.label(part.key)).split()[0])
    except (NotFoundError, ValueError, IndexError):
        return None
    if (output_bytes == part.size) is not (kind == "output"):
        return None
    return await _read(storage, found.batch_id, kind, part.key)


async def _read(storage: Storage, batch_id: str, kind: str, key: str) -> Assembled | None:
    try:
        stored = await storage.stat(key)
        digest, rows = hashlib.sha256(), 0
        async with aclosing(storage.stream(key, etag=stored.etag)) as chunks:
            async for chunk in chunks:
                digest.update(chunk)
                rows += chunk.count(b"\n")
    except NotFoundError:
        return None
    return Assembled(
        key=key,
        etag=stored.etag,
        size=stored.size,
        sha256=digest.hexdigest(),
        rows=rows,
        file_id=ids.output_file_id(batch_id, kind),
    )
