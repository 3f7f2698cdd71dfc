"""Tables in S3: a folder with files, and `_SUCCESS`, which comes last and lists them."""

import json
from collections.abc import Callable
from typing import Any

import msgspec

from shared import ids
from shared.errors import BrokenObjectError
from shared.ledger.commits import Assembled
from shared.ledger.copies import copies_prefix
from shared.lifecycle import TRANSITIONS, Event, Status
from shared.storage import Storage
from shared.table.output import Format, WantedTable

SUCCESS = "_SUCCESS"
#: A list of thousands of files; more is none that we wrote.
_MAX_SUCCESS_BYTES = 1024 * 1024


class MadeTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table as it was written, or why it was not: then it has no files.

    `bucket` and `prefix` are its folder; files without one have no prefix. `is_ours` says that it
    lies beside the batch's results. `code` and `message` say why it is not where, or what, the
    client wanted.
    """

    format: Format
    bucket: str
    prefix: str
    is_ours: bool
    columns: list[str]
    files: list[Assembled] = []
    code: str | None = None
    message: str | None = None

    def to_field(self) -> str:
        """The table as a batch's record has it."""
        has_files = bool(self.files)
        error = None if self.code is None else {"code": self.code, "message": self.message}
        found = {
            "format": self.format,
            "url": f"s3://{self.bucket}/{self.prefix}" if has_files and self.prefix else None,
            "rows": sum(file.rows for file in self.files),
            "bytes": sum(file.size for file in self.files),
            "file_ids": [file.file_id for file in self.files if file.file_id],
            "error": error,
        }
        return json.dumps(found)


def carried_key(batch_id: str) -> str:
    """The S3 key of what a dataset's rows carry along. It is swept with the copies of the input."""
    return f"{copies_prefix(batch_id)}carried.arrows"


def table_prefix(batch_id: str, event: str) -> str:
    """The folder of a table that lies beside the batch's results."""
    return f"batches/{batch_id}/{event}/table/"


def place_of(batch_id: str, event: str, destination: str) -> tuple[str, str]:
    """The bucket and the table's own folder in a place of the tenant's.

    What has ended early shall not be taken for the whole.
    """
    bucket, _, prefix = destination.removeprefix("s3://").partition("/")
    status = TRANSITIONS[Event(event)].target
    name = batch_id if status is Status.COMPLETED else f"{batch_id}-{status}"
    return bucket, f"{prefix}{name}/"


def unwritten_table(
    batch_id: str, event: str, wanted: WantedTable, bucket: str, *, is_ours: bool
) -> MadeTable:
    """A batch's table before it has files: in its place, or beside its results in our `bucket`."""
    prefix = table_prefix(batch_id, event)
    if not is_ours and wanted.destination is not None:
        bucket, prefix = place_of(batch_id, event, wanted.destination)
    return MadeTable(
        format=wanted.format,
        bucket=bucket,
        prefix=prefix,
        is_ours=is_ours,
        columns=[column.name for column in wanted.columns],
    )


def table_file_id(batch_id: str, number: int) -> str:
    """The id of the file with this number of a batch's table."""
    return ids.output_file_id(batch_id, f"table-{number}")


def wanted_of(text: str) -> WantedTable:
    """The table that a batch's record or manifest asks for."""
    return msgspec.json.decode(text, type=WantedTable)


def file_key(table: MadeTable, number: int) -> str:
    """The S3 key of the table's file with this number."""
    return f"{table.prefix}part-{number:05d}.{table.format}"


async def write_success(storage: Storage, table: MadeTable) -> None:
    """Say that the table is whole. `storage` is its bucket."""
    await storage.put(f"{table.prefix}{SUCCESS}", msgspec.json.encode(_listing(table)))


async def read_success(
    storage: Storage, table: MadeTable, file_id_of: Callable[[int], str]
) -> MadeTable:
    """The table in this folder, with its files. `storage` is its bucket.

    It may be the tenant's folder, who may write there what it likes: so it is one only if it is
    `table` in all else, and if its files are those that `write_success` would name. Raises
    NotFoundError and BrokenObjectError.
    """
    key = f"{table.prefix}{SUCCESS}"
    text = await storage.get(key, end=_MAX_SUCCESS_BYTES + 1)
    if len(text) > _MAX_SUCCESS_BYTES:
        raise BrokenObjectError(key, f"it has more than {_MAX_SUCCESS_BYTES} bytes")
    try:
        found = msgspec.json.decode(text, type=MadeTable)
    except (ValueError, RecursionError) as error:
        raise BrokenObjectError(key, "its bytes are not those that were written") from error
    named = [(file.key, file.file_id) for file in found.files]
    own = [(file_key(table, number), file_id_of(number)) for number in range(len(named))]
    if named != own or msgspec.structs.replace(found, files=[]) != table:
        raise BrokenObjectError(key, "it is the listing of another table")
    return found


def _listing(table: MadeTable) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(table)
    return {**found, "rows": sum(file.rows for file in table.files)}
