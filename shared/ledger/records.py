"""Records: the JSON objects of the ledger. Each carries its checksum, and says what it is about."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

import msgspec

from shared.checksums import sealed, unsealed
from shared.errors import BrokenObjectError, TransientError
from shared.storage import Storage

T = TypeVar("T")


def encoded(record: object) -> bytes:
    """The record's bytes in S3."""
    return sealed(msgspec.json.encode(record))


def decoded(key: str, body: bytes, kind: type[T]) -> T:
    """The record with these bytes. Raises BrokenObjectError, which does not quote them."""
    try:
        return msgspec.json.decode(unsealed(body), type=kind)
    except msgspec.ValidationError as error:
        raise BrokenObjectError(key, "it lacks something that it should have") from error
    except (ValueError, RecursionError) as error:
        # Also msgspec's own error, and that of a text that is no UTF-8.
        raise BrokenObjectError(key, "its bytes are not those that were written") from error


async def read_record(storage: Storage, key: str, kind: type[T]) -> T:
    """The record. Raises NotFoundError and BrokenObjectError."""
    return decoded(key, await storage.get(key), kind)


@asynccontextmanager
async def answered(storage: Storage, key: str) -> AsyncIterator[None]:
    """Raise BrokenObjectError if S3 fails for this object alone: it may have found the damage."""
    try:
        yield
    except TransientError as error:
        await storage.check_reads()
        raise BrokenObjectError(key, "S3 cannot read it, and answers for others") from error
