"""The request lines of a pinned dataset, read from S3 and rendered. Writes nothing."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from shared.dataset.dataset import PinnedDataset, Source
from shared.dataset.frames import Done, Job, Problem
from shared.dataset.rendering import Carried, rendered
from shared.errors import NotFoundError
from shared.input.problems import Problems
from shared.storage import ChangedError, Storage

#: Gets what the rows carry along, in chunks.
Carry = Callable[[bytes], Awaitable[None]]

_MAX_LISTED = 1000
#: Requests that are shown in full.
_SHOWN = 3


async def drop(_: bytes) -> None:
    """Nobody wants it."""


class DatasetLines:
    """Gives the lines of one dataset, and collects what is wrong with it."""

    def __init__(
        self,
        storage: Storage,
        pinned: PinnedDataset,
        endpoint: str,
        max_rows: int,
        *,
        carry: Carry = drop,
    ) -> None:
        """One row more than `max_rows` is rendered, so that too many are seen."""
        self._storage = storage
        self._carry = carry
        self._job = Job(pinned, endpoint, max_rows)
        self.problems = Problems(_MAX_LISTED)
        #: The first requests.
        self.first: list[dict[str, Any]] = []

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The lines in chunks, up to the first problem. Raises TransientError."""
        try:
            async with aclosing(rendered(self._job, self._read)) as said:
                async for one in said:
                    match one:
                        case bytes():
                            # What has a problem is not used; only the other problems are.
                            if not self.problems.count:
                                self._note_first(one)
                                yield one
                        case Carried():
                            await self._carry(one.body)
                        case Problem():
                            self.problems.add(one.code, one.row, one.param, one.message)
                        case Done() if one.rows == 0 and not self.problems.count:
                            text = f"None of the dataset's {one.read} rows is wanted."
                            self.problems.add("empty_file", None, "input", text)
                        case Done():
                            pass
        except ChangedError as error:
            text = f"{error} It is no longer what it was when the batch was created."
            self.problems.add("input_changed", None, "input", text)
        except NotFoundError as error:
            self.problems.add("input_changed", None, "input", str(error))
        self.problems.add_unlisted_count()

    def _note_first(self, chunk: bytes) -> None:
        if not self.first:
            self.first = [json.loads(line) for line in chunk.split(b"\n", _SHOWN)[:_SHOWN] if line]

    async def _read(self, source: Source, start: int, end: int) -> bytes:
        at = source.start
        return await self._storage.get(
            source.key, start=at + start, end=at + end, etag=source.etag, bucket=source.bucket
        )
