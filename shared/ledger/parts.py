"""Parts: the results of slices in S3, and what becomes of one whose bytes are wrong."""

import asyncio
from contextlib import suppress
from typing import Literal

import structlog

from shared.errors import BrokenObjectError, NotFoundError, TransientError
from shared.ledger.quarantine import set_aside
from shared.slices import Part, Section
from shared.state import State
from shared.storage import Storage
from shared.tasks import beside

log = structlog.get_logger()

#: Parts that are read into memory at a time.
_PARTS_AT_ONCE = 8


def part_key(batch_id: str, index: int, epoch: int) -> str:
    """The S3 key of the part that a claim writes."""
    return f"batches/{batch_id}/parts/{index:06d}-{epoch}.jsonl"


def index_of(key: str) -> int:
    """The slice whose part has this S3 key."""
    return int(key.rpartition("/")[2].partition("-")[0])


async def read_section(storage: Storage, part: Part, section: Section) -> bytes:
    """Bytes of a part. Raises NotFoundError, and BrokenObjectError if they are not its own."""
    body = await storage.get(part.key, start=section.start, end=section.end)
    if not await beside(section.fits, body):
        raise BrokenObjectError(part.key, "it has other bytes than when it was committed")
    return body


async def is_broken(storage: Storage, part: Part) -> bool:
    """Whether the part is gone, has other bytes than when it was committed, or cannot be read.

    Raises TransientError if S3 is away.
    """
    try:
        return not part.fits(await storage.get(part.key))
    except NotFoundError:
        return True
    except TransientError:
        # S3 may have found the damage itself, and not give the object out.
        await storage.check_reads()
        return True


async def drop_broken(
    state: State, storage: Storage, batch_id: str, plan: str
) -> dict[int, Literal["again", "lost"]]:
    """Take back all broken parts of a batch that has not ended, and set their objects aside.

    Returns the index of each slice, and whether it runs again; a batch that is closing has no time
    for that.
    """
    dropped: dict[int, Literal["again", "lost"]] = {}
    async for page in state.slices.pages(batch_id, plan):
        parts = [(one.index, one.part) for one in page if one.part is not None]
        for first in range(0, len(parts), _PARTS_AT_ONCE):
            some = parts[first : first + _PARTS_AT_ONCE]
            found = await asyncio.gather(*(is_broken(storage, part) for _, part in some))
            for (index, part), is_damaged in zip(some, found, strict=True):
                if is_damaged:
                    outcome = await drop_part(state, storage, batch_id, index, part)
                    if outcome != "changed":
                        dropped[index] = outcome
    return dropped


async def drop_part(
    state: State, storage: Storage, batch_id: str, index: int, part: Part
) -> Literal["again", "lost", "changed"]:
    """Take back a broken part, and set its object aside. Returns what `Claims.drop_part` does."""
    outcome = await state.claims.drop_part(batch_id, index, part)
    if outcome != "changed":
        # One that S3 cannot read stays, and is swept with the batch's parts.
        with suppress(TransientError):
            await set_aside(storage, part.key)
        fields = {"batch_id": batch_id, "index": index, "key": part.key}
        log.error("part.broken", runs_again=outcome == "again", **fields)
    return outcome
