"""A dry run of a pipeline: what its first call would ask, without creating anything."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Literal, NamedTuple

import msgspec
from pydantic import BaseModel, ConfigDict, Field

from gateway.dry_run import DryRun, DryRuns
from shared.dataset.dataset import PinnedDataset
from shared.errors import InvalidInputError
from shared.openai.shapes import BatchError, BatchErrors
from shared.pipeline.declaration import Declaration
from shared.pipeline.duplicates import row_digest
from shared.pipeline.plan import Deduplication, Edge, planned
from shared.pipeline.stepping import Dropped, Failed, Item, Passed
from shared.pipeline.steps import StepsError, taken_through
from shared.storage import Storage
from shared.submission.dataset_lines import DatasetLines

#: Rows of the input that are taken through the stages before the first call.
SAMPLED_ROWS = 500
#: Their bytes, as many as a pipeline takes together, and those of the requests that are looked at.
_SAMPLED_BYTES, _LOOKED_AT_BYTES = 4 * 1024 * 1024, 16 * 1024 * 1024
#: Rows may be far behind in the input, and each may be slow in each stage.
_MAX_SECONDS = 60.0
#: Errors that are listed.
_MAX_LISTED = 1000


class PipelineDryRun(BaseModel):
    """The answer to `create_pipeline` with `dry_run`: nothing was created."""

    model_config = ConfigDict(frozen=True)

    object: Literal["pipeline.dry_run"] = "pipeline.dry_run"
    valid: bool = Field(
        description="Whether the first rows can be read, none fails before the first call, and all "
        "their requests would run."
    )
    columns: list[str] = Field(description="Those that rows have behind the last stage.")
    rows_read: int = Field(
        description=f"The first rows of the input that were looked at, at most {SAMPLED_ROWS}, "
        "and fewer of large ones."
    )
    dropped: int = Field(description="How many of them filters and duplicates end.")
    errors: BatchErrors | None = Field(
        description="Why the input cannot be read, and which of these rows fail before the first "
        "call. `line` is the row of the input, where the input is what is wrong."
    )
    first_call: DryRun | None = Field(
        description="What the first call would do with these rows, with its first requests and "
        "their tokens. Null if no row comes to it, or if another table is read before it."
    )


class _Sample(NamedTuple):
    """What has become of the rows before the first call; no lines if nobody can say."""

    lines: Sequence[bytes]
    failed: Sequence[Failed]
    dropped: int


class PipelineDryRuns:
    """Makes them."""

    def __init__(self, storage: Storage, dry_runs: DryRuns) -> None:
        self._storage = storage
        self._dry_runs = dry_runs

    async def run(
        self,
        tenant: str,
        declaration: Declaration,
        pinned: PinnedDataset,
        columns: Sequence[str],
        tokenizers: Mapping[int, bytes],
    ) -> PipelineDryRun:
        """Look at the first rows; `pinned` is the input with at most SAMPLED_ROWS.

        Raises InvalidInputError for stages that no row can take, and for rows that take too long;
        and TransientError.
        """
        try:
            async with asyncio.timeout(_MAX_SECONDS), self._dry_runs.turn(tenant):
                return await self._looked(tenant, declaration, pinned, columns, tokenizers)
        except TimeoutError as error:
            raise InvalidInputError(
                f"The first rows took longer than {_MAX_SECONDS:g} s to the first call. Nothing is "
                "wrong with the pipeline for that; try it with fewer rows by input.limit.",
                param="input",
                code="dry_run_too_slow",
            ) from error

    async def _looked(
        self,
        tenant: str,
        declaration: Declaration,
        pinned: PinnedDataset,
        columns: Sequence[str],
        tokenizers: Mapping[int, bytes],
    ) -> PipelineDryRun:
        edge = planned(declaration).edges[0]
        assert edge.call is not None  # noqa: S101  # a checked pipeline has one
        source = DatasetLines(self._storage, pinned, edge.call.call.endpoint, SAMPLED_ROWS)
        items = await _first_rows(source)
        try:
            sample = await _taken(items, edge, tokenizers)
        except StepsError as error:
            problem = error.problem
            raise InvalidInputError(str(error), param=problem.param, code=problem.code) from error
        errors = [*source.problems.listed, *map(_error, sample.failed)]
        call = None
        if sample.lines and not source.problems.count:
            call = await self._dry_runs.run_lines(
                tenant,
                b"".join(line + b"\n" for line in _within(sample.lines, _LOOKED_AT_BYTES)),
                endpoint=edge.call.call.endpoint,
                completion_window=declaration.completion_window,
            )
        return PipelineDryRun(
            valid=not errors and (call is None or call.valid),
            columns=["custom_id", *columns],
            rows_read=len(items),
            dropped=sample.dropped,
            errors=BatchErrors(data=errors[:_MAX_LISTED]) if errors else None,
            first_call=call,
        )


async def _first_rows(source: DatasetLines) -> list[Item]:
    """As many as are looked at together."""
    items, size = list[Item](), 0
    async with aclosing(source.chunks()) as chunks:
        async for chunk in chunks:
            for line in chunk.splitlines():
                items.append(_item(line))
                size += len(line)
                if size >= _SAMPLED_BYTES:
                    return items
    return items


def _within(lines: Sequence[bytes], size: int) -> Iterator[bytes]:
    """The first lines, of so many bytes; at least one."""
    for line in lines:
        yield line
        size -= len(line)
        if size <= 0:
            return


async def _taken(items: Sequence[Item], edge: Edge, tokenizers: Mapping[int, bytes]) -> _Sample:
    """Take the rows through the stages before the call. Raises StepsError."""
    failed, dropped, lines = list[Failed](), 0, list[bytes]()
    parts = edge.parts if edge.parts and isinstance(edge.parts[-1], list) else [*edge.parts, []]
    for number, part in enumerate(parts):
        if isinstance(part, Deduplication):
            kept = dict[bytes, Item]()
            for one in items:
                kept.setdefault(row_digest(part.stage, one.columns, part.columns), one)
            dropped += len(items) - len(kept)
            items = list(kept.values())
            continue
        if not isinstance(part, list):
            # The other table may be large.
            return _Sample([], failed, dropped)
        render = edge.call.render if edge.call and number == len(parts) - 1 else None
        outcomes = await taken_through(items, part, render, tokenizers)
        failed += [one for one in outcomes if isinstance(one, Failed)]
        dropped += sum(isinstance(one, Dropped) for one in outcomes)
        passed = [one for one in outcomes if isinstance(one, Passed)]
        items, lines = [one.item for one in passed], [one.line.encode() for one in passed]
    return _Sample(lines, failed, dropped)


class _Line(msgspec.Struct):
    custom_id: str
    body: dict[str, object]


def _item(line: bytes) -> Item:
    found = msgspec.json.decode(line, type=_Line)
    return Item(found.custom_id, found.body)


def _error(failed: Failed) -> BatchError:
    return BatchError(
        code=failed.code, message=failed.message, param=f"stages[{failed.stage}]", line=None
    )
