"""Looks tenants' LoRA adapters up in S3, where lane jobs may read and no index is needed."""

from shared.adapters import PURPOSE
from shared.errors import BrokenObjectError, NotFoundError
from shared.ledger.file_records import read_file
from shared.state import FileRecord
from shared.storage import Storage


async def adapter_file(storage: Storage, tenant: str, file_id: str) -> FileRecord:
    """The tenant's file. Raises NotFoundError unless it is an adapter, and TransientError.

    A deleted file has no record in S3.
    """
    try:
        file = await read_file(storage, f"files/{tenant}/{file_id}")
    except BrokenObjectError as error:
        raise NotFoundError(f"The record of {file_id} is damaged.") from error
    if file.purpose != PURPOSE or file.tenant != tenant or file.has_expired:
        raise NotFoundError(f"{file_id} is no adapter of {tenant}.")
    return file
