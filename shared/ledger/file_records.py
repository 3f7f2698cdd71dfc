"""Records of uploaded files: each lies beside its object in S3."""

from shared.errors import BrokenObjectError
from shared.ledger.records import encoded, read_record
from shared.state import FileRecord
from shared.storage import Storage


async def write_file(storage: Storage, file: FileRecord) -> None:
    """Store beside the file's object the record that a rebuild of Redis needs."""
    await storage.put(file.record_key, encoded(file.to_fields()))


async def note_deletion(storage: Storage, file: FileRecord) -> None:
    """Let no rebuild of Redis bring the file back. Call it before deleting it there."""
    if file.has_record:
        await storage.remove([file.record_key])
    else:
        await storage.put(file.deleted_key, b"")


async def read_file(storage: Storage, key: str) -> FileRecord:
    """The file whose object has this key. Raises NotFoundError and BrokenObjectError."""
    record_key = f"{key}.json"
    fields = await read_record(storage, record_key, dict[str, str | int])
    try:
        file = FileRecord.from_fields({name: str(value) for name, value in fields.items()})
    except (KeyError, ValueError) as error:
        raise BrokenObjectError(record_key, "it lacks something that it should have") from error
    if file.key != key:
        raise BrokenObjectError(record_key, "it is the record of another file")
    return file
