"""Creates a file in steps: reserve it, store it with its record, then make it visible."""

from gateway.dependencies import Services
from gateway.limit_errors import no_room
from gateway.limits import limits_of
from shared import crash
from shared.errors import NotFoundError, TransientError
from shared.ledger.file_records import write_file
from shared.retention import RESERVED_SECONDS
from shared.state import FileRecord, State
from shared.state.files import StoredBytesError


async def live_file(state: State, tenant: str, file_id: str) -> FileRecord:
    """The tenant's file. Raises NotFoundError, also for one that has expired."""
    file = await state.files.get(tenant, file_id)
    if file.has_expired:
        raise no_such_file(file_id)
    return file


def no_such_file(file_id: str) -> NotFoundError:
    """The error for a file that does not exist, has expired or is another tenant's."""
    return NotFoundError(f"No such File object: {file_id}", param="id")


def objects(key: str) -> tuple[str, str]:
    """A file's object, and its record beside it."""
    return key, f"{key}.json"


async def reserve(services: Services, key: str, *, file_id: str = "") -> bool:
    """Reserve a file's objects before anything is stored, so that a crash leaves nothing behind.

    False if this file has its objects already.
    """
    return await services.state.files.reserve(
        *objects(key), seconds=RESERVED_SECONDS, file_id=file_id
    )


async def write_record(services: Services, file: FileRecord) -> None:
    """Store beside the file's object the record that a rebuild of Redis needs."""
    await write_file(services.storage, file)
    crash.point("files.recorded")


async def keep(services: Services, file: FileRecord) -> None:
    """Make a stored file visible.

    Raises TransientError if its reservation has ended, and LimitError if the tenant would have
    more bytes stored than it may.
    """
    limit = (await limits_of(services, file.tenant)).stored_bytes or 0
    await write_record(services, file)
    try:
        is_kept = await services.state.files.keep(file, max_bytes=limit)
    except StoredBytesError as error:
        await services.storage.remove(objects(file.key))
        await services.state.files.unreserve(*objects(file.key))
        raise no_room(file.tenant, limit=limit, used=error.used) from error
    if not is_kept:
        await services.storage.remove(objects(file.key))
        raise TransientError(f"{file.id} took longer than its reservation.")
