"""The quarantine: where damaged objects go, so that they stop nobody and nothing is deleted."""

from datetime import UTC, datetime

from shared.errors import NotFoundError
from shared.storage import Storage

QUARANTINE = "quarantine/"


async def set_aside(storage: Storage, key: str) -> str | None:
    """Move the object, with its metadata, out of the way. Returns its new key, None if it is gone.

    Safe to repeat: a process that dies between the copy and the removal leaves a second copy.
    """
    copy = await keep_copy(storage, key)
    if copy is not None:
        await storage.remove([key])
    return copy


async def keep_copy(storage: Storage, key: str) -> str | None:
    """Copy an object into the quarantine that others still need. None if it is gone."""
    copy = f"{QUARANTINE}{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}/{key}"
    try:
        await storage.copy(key, copy)
    except NotFoundError:
        return None
    return copy
