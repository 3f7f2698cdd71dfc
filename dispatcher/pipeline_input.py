"""The rows that a pipeline begins with, read from its pinned input."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec

from shared.dataset.dataset import PinnedDataset, Source
from shared.dataset.frames import Job, Problem
from shared.dataset.rendering import rendered
from shared.errors import BatchyardError, NotFoundError
from shared.pipeline.stepping import Failed, Item
from shared.storage import ChangedError, Storage

#: The number of the stage that the input is.
INPUT = -1
_NO_LIMIT = 2**40


class UnreadableInputError(BatchyardError):
    """The input as a whole cannot be read. `code` says why."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Line(msgspec.Struct):
    custom_id: str
    body: dict[str, object]


async def input_rows(
    storage: Storage, pinned: PinnedDataset, *, skip: int
) -> AsyncGenerator[Item | Failed, None]:
    """The rows after the first `skip`, always in the same order.

    Raises UnreadableInputError and TransientError.
    """
    number = 0
    async with aclosing(_all_rows(storage, pinned)) as rows:
        async for row in rows:
            number += 1
            if number > skip:
                yield Item(row.id, row.columns, (number,)) if isinstance(row, Item) else row


async def _all_rows(storage: Storage, pinned: PinnedDataset) -> AsyncGenerator[Item | Failed, None]:
    async def read(source: Source, start: int, end: int) -> bytes:
        at = source.start
        return await storage.get(
            source.key, start=at + start, end=at + end, etag=source.etag, bucket=source.bucket
        )

    job = Job(pinned, "", max_rows=_NO_LIMIT, max_problems=_NO_LIMIT)
    try:
        async with aclosing(rendered(job, read)) as said:
            async for one in said:
                match one:
                    case bytes():
                        for line in one.split(b"\n"):
                            if line:
                                found = msgspec.json.decode(line, type=_Line)
                                yield Item(found.custom_id, found.body)
                    case Problem(row=None):
                        raise UnreadableInputError(one.code, one.message)
                    case Problem():
                        yield Failed(f"row-{one.row}", INPUT, one.code, one.message)
                    case _:
                        pass
    except ChangedError as error:
        text = f"{error} It is no longer what it was when the pipeline was created."
        raise UnreadableInputError("input_changed", text) from error
    except NotFoundError as error:
        raise UnreadableInputError("input_changed", str(error)) from error
