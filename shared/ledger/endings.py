"""How a batch ends: by which event, and with which commit. Decides, and writes nothing."""

import json
from collections.abc import Mapping, Sequence

from shared.ledger.commits import Assembled, Commit, commit_key
from shared.ledger.reasons import LEFT_OUT
from shared.ledger.tables import MadeTable
from shared.lifecycle import TRANSITIONS, Event, Status
from shared.state import BatchRecord, FileRecord
from shared.state.batches import Pin
from shared.storage import Stored

#: The fields that an end writes into the record.
_OF_ENDS = {
    "completed",
    "failed",
    "errors",
    "first_error",
    "output_file_id",
    "output_object",
    "error_file_id",
    "error_object",
    "table",
}


def ending_event(record: BatchRecord) -> Event:
    """The event that ends a `finalizing` or `cancelling` batch."""
    if record.status is Status.CANCELLING:
        return Event.CANCEL_COMMITTED
    return _end_of_running(record)


def new_commit(
    record: BatchRecord,
    event: Event,
    pin: Pin,
    *,
    output: Assembled | None,
    error: Assembled | None,
    bucket: str,
    output_seconds: int,
    keep_parts: bool = False,
    table: MadeTable | None = None,
    input_place: Mapping[str, str | int] | None = None,
) -> Commit:
    """The commit of a batch that ends with these files in `bucket`, and with this table.

    `output_seconds` is how long files are kept unless the batch says otherwise. Parts are swept at
    once, or a day later. `input_place` is where the input of an open batch is by now.
    """
    fields: dict[str, str | int] = {
        **(input_place or {}),
        "completed": output.rows if output else 0,
        "failed": error.rows if error else 0,
    }
    if record.number("given_up"):
        # These rows are among the failed ones now.
        fields["given_up"] = 0
    seconds = record.number("output_seconds") or output_seconds
    files = []
    for kind, written in (("output", output), ("error", error)):
        if written is not None:
            files.append(_file(record, kind, written, bucket, seconds).to_fields())
            fields[f"{kind}_file_id"] = written.file_id
            fields[f"{kind}_object"] = _place(written, bucket)
    if table is not None:
        files += [file.to_fields() for file in _table_files(record, table, seconds)]
        fields["table"] = table.to_field()
    parts = f"batches/{record.id}/parts/"
    is_part = any(one is not None and one.key.startswith(parts) for one in (output, error))
    # Even if no part was committed: a job may have died after writing one.
    has_garbage = "plan" in record.fields and not is_part
    return Commit(
        batch_id=record.id,
        event=event,
        record=record.fields,
        fields=fields,
        output=output,
        error=error,
        files=files,
        garbage=parts if has_garbage and not keep_parts else None,
        garbage_later=[*_overtaken(record), *([parts] if has_garbage and keep_parts else [])],
        **pin._asdict(),
    )


def commit_of(record: BatchRecord, event: Event, files: Sequence[FileRecord]) -> Commit:
    """The commit of a batch that has ended by `event`, from its record and its files."""
    row = TRANSITIONS[event]
    fields = {name: text for name, text in record.fields.items() if name in _OF_ENDS}
    # The reasons that were left out are lost with the commit that had them.
    outside = {*_OF_ENDS, LEFT_OUT}
    before = {name: text for name, text in record.fields.items() if name not in outside}
    at = int(before.pop(f"{row.target}_at"))
    own = {fields.get("output_file_id"), fields.get("error_file_id"), *record.table_file_ids}
    return Commit(
        batch_id=record.id,
        event=event,
        record={**before, "status": min(row.sources)},
        sequence=record.number("sequence"),
        at_ms=at * 1000,
        fields=fields,
        output=_assembled(record, "output"),
        error=_assembled(record, "error"),
        files=[file.to_fields() for file in files if file.id in own],
    )


def event_of(record: BatchRecord) -> Event:
    """The event by which a batch has ended."""
    if record.status is not Status.FAILED:
        return next(one for one, row in TRANSITIONS.items() if row.target is record.status)
    if "plan" not in record.fields:
        return Event.INPUT_REJECTED
    is_lost = '"input_changed"' in record.fields.get("errors", "")
    return Event.INPUT_LOST if is_lost else Event.LANE_FAILED


def _assembled(record: BatchRecord, kind: str) -> Assembled | None:
    if (text := record.fields.get(f"{kind}_object")) is None:
        return None
    place = json.loads(text)
    del place["bucket"]
    rows = record.number("completed" if kind == "output" else "failed")
    return Assembled(**place, rows=rows, file_id=record.fields[f"{kind}_file_id"])


def _file(
    record: BatchRecord, kind: str, written: Assembled, bucket: str, seconds: int
) -> FileRecord:
    return FileRecord.stored(
        written.file_id,
        record.tenant,
        Stored(written.key, written.etag, written.size),
        bucket=bucket,
        created_at=record.number(f"{record.status}_at"),
        seconds=seconds,
        filename=f"{record.id}_{kind}.jsonl",
        purpose="batch_output",
    )._replace(sha256=written.sha256)


def _table_files(record: BatchRecord, table: MadeTable, seconds: int) -> list[FileRecord]:
    """The files of a table. Those in a place of the tenant's are not ours to delete."""
    return [
        _file(record, "table", file, table.bucket, seconds)._replace(
            filename=f"{record.id}_{file.key.rpartition('/')[2]}", owned=table.is_ours
        )
        for file in table.files
    ]


def _place(written: Assembled, bucket: str) -> str:
    place = {
        "bucket": bucket,
        "key": written.key,
        "etag": written.etag,
        "size": written.size,
        "sha256": written.sha256,
    }
    return json.dumps(place)


def _overtaken(record: BatchRecord) -> Sequence[str]:
    """Files that another finaliser may have written before the batch was cancelled."""
    if record.status is not Status.CANCELLING or "finalizing_at" not in record.fields:
        return ()
    event = _end_of_running(record)
    return f"batches/{record.id}/{event}/", commit_key(record.id, event)


def _end_of_running(record: BatchRecord) -> Event:
    if record.number("window_closed"):
        return Event.EXPIRY_COMMITTED
    return Event.OUTPUT_COMMITTED
