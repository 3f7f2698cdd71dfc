"""Copies of a part of a batch's input in S3, in which the lines of each slice stand together.

Most only spare reading: their lines are those of the input, which is read if a copy is gone. So
they may be removed at any time, and nothing has to be known of them but their names. Copies with
errors in place of bad lines are as much a batch's input as the input itself, and so are the
additions to an open batch. Rows of an addition that were answered before have their answers in a
copy of it.
"""

from collections.abc import AsyncIterator

import structlog

from shared.errors import NotFoundError
from shared.input.request_lines import split
from shared.retention import ENDED_BATCH_SECONDS
from shared.slices import Slice
from shared.state import State
from shared.storage import Storage

log = structlog.get_logger()


def copies_prefix(batch_id: str) -> str:
    """The prefix of all copies of a batch's input, as in `lua/lib/transition.lua`."""
    return f"batches/{batch_id}/copies/"


def copy_key(batch_id: str, name: str) -> str:
    """The S3 key of a copy."""
    return f"{copies_prefix(batch_id)}{name}.jsonl"


def copies_until(expires_at: int, *, now: float) -> int:
    """When the copies of a batch may be swept at the latest; its end comes before that."""
    return max(expires_at, int(now)) + ENDED_BATCH_SECONDS


async def reserve_copies(state: State, batch_id: str, *, expires_at: int, now: float) -> None:
    """Let the copies of a batch be swept, a day after its end. Comes before the first of them."""
    seconds = copies_until(expires_at, now=now) - int(now)
    await state.files.reserve(copies_prefix(batch_id), seconds=seconds)


async def write_copy(
    storage: Storage, batch_id: str, name: str, chunks: AsyncIterator[bytes]
) -> None:
    """Write a copy. Its name must be new: nobody changes a copy that a plan may name."""
    await storage.upload(copy_key(batch_id, name), chunks)


async def read_slice(
    storage: Storage,
    batch_id: str,
    slice_: Slice,
    *,
    key: str,
    etag: str,
    bucket: str,
    version_id: str | None = None,
) -> bytes:
    """The slice's own lines, in order. Blank lines may be among them, but no lines of others.

    The rest names the batch's input. Raises NotFoundError if that is gone, or a copy that alone
    has these lines, and ChangedError.
    """
    copy = slice_.copy
    while copy is not None:
        name = copy.name
        try:
            body = await storage.get(copy_key(batch_id, name), start=copy.start, end=copy.end)
        except NotFoundError:
            log.warning("copy.gone", batch_id=batch_id, name=name)
            if copy.is_input:
                raise
        else:
            if copy.fits(body):
                return body
            log.error("copy.broken", batch_id=batch_id, name=name)
            if copy.is_input:
                raise NotFoundError(f"The copy {name} of batch {batch_id} is damaged.")
        copy = copy.plain
    body = await storage.get(
        key, start=slice_.start, end=slice_.end, etag=etag, bucket=bucket, version_id=version_id
    )
    return b"\n".join(slice_.pick(split(body))) if slice_.mask else body
