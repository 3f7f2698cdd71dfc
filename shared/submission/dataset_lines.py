"""The request lines of a pinned dataset, read from S3 and rendered. Writes nothing."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from typing import Any

from shared.dataset.dataset import Dataset, PinnedDataset, Source
from shared.dataset.frames import Done, Job, Problem
from shared.dataset.rendering import Carried, rendered
from shared.dataset.template import has_marks
from shared.errors import NotFoundError
from shared.input.line_check import ModelProblem, model_problem
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
        models: Mapping[str, AbstractSet[str]] | None = None,
        carry: Carry = drop,
    ) -> None:
        """One row more than `max_rows` is rendered, so that too many are seen.

        `models` has the endpoints of each model that the tenant may use. With it, a template that
        names another one for all rows is a problem before any is rendered.
        """
        self._storage = storage
        self._models = models
        self._carry = carry
        self._job = Job(pinned, endpoint, max_rows)
        self.problems = Problems(_MAX_LISTED)
        #: The first requests.
        self.first: list[dict[str, Any]] = []

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The lines in chunks, up to the first problem. Raises TransientError."""
        if (problem := self._wrong_model()) is not None:
            self.problems.add(problem.code, None, "input.template.model", problem.message)
            return
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
                        case Done():
                            self._note_end(one)
        except ChangedError as error:
            text = f"{error} It is no longer what it was when the batch was created."
            self.problems.add("input_changed", None, "input", text)
        except NotFoundError as error:
            self.problems.add("input_changed", None, "input", str(error))
        self.problems.add_unlisted_count()

    def _wrong_model(self) -> ModelProblem | None:
        """Why no row can be for the model that the template names; None if each row says it."""
        if self._models is None:
            return None
        model = Dataset.model_validate_json(bytes(self._job.pinned.dataset)).template.get("model")
        if isinstance(model, str) and has_marks(model):
            return None
        return model_problem(model, self._job.endpoint, self._models)

    def _note_first(self, chunk: bytes) -> None:
        if not self.first:
            self.first = [json.loads(line) for line in chunk.split(b"\n", _SHOWN)[:_SHOWN] if line]

    def _note_end(self, done: Done) -> None:
        if done.rows or self.problems.count:
            return
        text = "The dataset has no rows."
        if done.read:
            text = f"None of the dataset's {done.read} rows is left by the filter and the sample."
        self.problems.add("empty_file", None, "input", text)

    async def _read(self, source: Source, start: int, end: int) -> bytes:
        at = source.start
        return await self._storage.get(
            source.key, start=at + start, end=at + end, etag=source.etag, bucket=source.bucket
        )
