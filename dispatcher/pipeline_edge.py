"""One edge of a pipeline: its log of handovers, and how the next one is made."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from dispatcher.pipeline_tables import PipelineTables
from dispatcher.pipeline_tokenizers import PipelineTokenizers
from shared import crash
from shared.errors import TransientError
from shared.ledger.pipelines import (
    Handover,
    Sections,
    StepCount,
    create_handover,
    read_handover,
    tails,
)
from shared.pipeline.duplicates import row_digest, split_digests
from shared.pipeline.plan import Deduplication, Edge, Joining, Part, Ranking
from shared.pipeline.stepping import Dropped, Failed, Item, Passed, items_of, lines_of
from shared.pipeline.steps import taken_through
from shared.state import BatchRecord, State
from shared.state.additions import name_digest
from shared.storage import Storage
from shared.submission.additions import (
    MAX_ADDITION_BYTES,
    MAX_ADDITION_ROWS,
    Additions,
    Answered,
    RoomError,
)

#: Rows of an addition that may be given answers: these are held in memory, each of 256 KiB at most.
_MAX_ANSWERED_ROWS = 256


class Work(NamedTuple):
    """What the next handover is made of, and where it came from."""

    items: Sequence[Item]
    failed: Sequence[Failed] = ()
    slices: Sequence[int] = ()
    read: int = 0
    is_last: bool = False


class EdgeLog:
    """The handovers of one edge so far. S3 decides which there are."""

    def __init__(
        self,
        storage: Storage,
        pipeline_id: str,
        number: int,
        edge: Edge,
        *,
        additions: Additions,
        tables: PipelineTables,
        tokenizers: PipelineTokenizers,
    ) -> None:
        self._storage = storage
        self._pipeline_id = pipeline_id
        self._number = number
        self._edge = edge
        self._additions = additions
        self._tables = tables
        self._tokenizers = tokenizers
        #: Of one addition.
        self._most_rows = MAX_ADDITION_ROWS
        if edge.call is not None and edge.call.call.cache:
            self._most_rows = _MAX_ANSWERED_ROWS
        self._firsts: list[int] = []
        #: The first row of each handover that has rows, in the order of the input.
        self.begins: list[tuple[tuple[int, ...], int]] = []
        self._seen = set[bytes]()
        self._last_read: tuple[int, list[Item]] = (-1, [])
        #: Lines that were handed on, and may not have been added yet.
        self._unadded: list[bytes] = []
        self.handed = set[int]()
        #: The first slice that was not handed on: those before it need no look.
        self.first_left = 0
        #: Rows of the input that were read.
        self.read = 0
        self.rows = 0
        self.counts: defaultdict[int, StepCount] = defaultdict(StepCount)
        self.is_done = False

    @property
    def handovers(self) -> int:
        """How many there are."""
        return len(self._firsts)

    @property
    def has_unadded(self) -> bool:
        """Whether rows that were handed on wait for room in the next batch."""
        return bool(self._unadded)

    async def load(self) -> None:
        """Read the log. Raises BrokenObjectError, with what is before the damage read."""
        has_digests = any(isinstance(part, Deduplication) for part in self._edge.parts)
        async for handover in tails(self._storage, self._pipeline_id, self._number):
            self._take(handover)
            if has_digests and handover.digests:
                _, sections = await self.sections(handover.number)
                self._seen.update(split_digests(sections.digests))
        if self._edge.call is not None and self._firsts:
            # All before it were added before it was created.
            _, sections = await self.sections(self.handovers - 1)
            self._unadded = [line for line in sections.lines.split(b"\n") if line]

    async def sections(self, number: int) -> tuple[Handover, Sections]:
        """A handover with what it has. Raises BrokenObjectError."""
        return await read_handover(self._storage, self._pipeline_id, self._number, number)

    async def items(self, first_row: int, rows: int) -> Sequence[Item]:
        """Rows that were handed on, which are in one handover."""
        number = bisect_right(self._firsts, first_row) - 1
        if self._last_read[0] != number:
            _, sections = await self.sections(number)
            self._last_read = (number, items_of(sections.items))
        start = first_row - self._firsts[number]
        return self._last_read[1][start : start + rows]

    async def hand_over(self, state: State, record: BatchRecord | None, work: Work) -> None:
        """Decide what becomes of the rows; `record` is the next call's batch.

        Raises StepsError, and TransientError if another leader was first.
        """
        counts: defaultdict[int, StepCount] = defaultdict(StepCount)
        failed, digests = list(work.failed), list[bytes]()
        items: Sequence[Item] = work.items
        passed: list[Passed] = []
        *parts, last = _with_end(self._edge.parts)
        for part in (*parts, last):
            if isinstance(part, Deduplication):
                items = self._first_ones(part, items, digests, counts)
                continue
            call = self._edge.call
            render = call.render if part is last and call is not None else None
            if isinstance(part, Joining):
                outcomes = [await self._tables.joined(part, item) for item in items]
            elif isinstance(part, Ranking):
                outcomes = await self._tables.ranked(part, items)
            else:
                tokenizers = await self._tokenizers.of(part) if items else {}
                outcomes = await taken_through(items, part, render, tokenizers)
            passed = [one for one in outcomes if isinstance(one, Passed)]
            failed += [one for one in outcomes if isinstance(one, Failed)]
            for one in outcomes:
                if isinstance(one, Dropped):
                    counts[one.stage].dropped += 1
            items = [one.item for one in passed]
        if record is not None:
            passed = await self._acceptable(state, record, passed, failed)
        passed.sort(key=lambda one: one.order)
        for reason in failed:
            counts[reason.stage].failed += 1
        lines = [one.line.encode() for one in passed] if record is not None else []
        handover = Handover(
            number=self.handovers,
            slices=list(work.slices),
            read=work.read,
            first_row=self.rows,
            rows=len(passed),
            begins=list(passed[0].order) if passed else [],
            counts=dict(counts),
            is_last=work.is_last,
        )
        sections = Sections(
            lines=b"".join(line + b"\n" for line in lines),
            items=lines_of(one.item for one in passed),
            failed=lines_of(failed),
            digests=b"".join(digests),
        )
        if not await create_handover(
            self._storage, self._pipeline_id, self._number, handover, sections
        ):
            raise TransientError("Another dispatcher leads this pipeline.")
        crash.point("pipelines.handed_over")
        self._take(handover)
        self._seen.update(digests)
        self._unadded = lines

    async def add(self, record: BatchRecord, answered: Answered) -> None:
        """Add what was handed on to the next call's batch, as far as there is room.

        Raises RoomError if the batch has no room for the next row now, and otherwise as
        `Additions.add`.
        """
        count = MAX_ADDITION_ROWS
        while self._unadded:
            count = min(count, _together(self._unadded, self._most_rows))
            lines = b"\n".join(self._unadded[:count])
            try:
                await self._additions.add(record, lines, answered=answered)
            except RoomError:
                if count == 1:
                    raise
                count //= 2
                continue
            crash.point("pipelines.added")
            del self._unadded[:count]

    def _take(self, handover: Handover) -> None:
        self._firsts.append(handover.first_row)
        if handover.rows:
            self.begins.append((tuple(handover.begins), handover.number))
        self.handed.update(handover.slices)
        while self.first_left in self.handed:
            self.first_left += 1
        self.read += handover.read
        self.rows += handover.rows
        self.is_done = handover.is_last
        for stage, count in handover.counts.items():
            self.counts[stage].failed += count.failed
            self.counts[stage].dropped += count.dropped

    def _first_ones(
        self,
        part: Deduplication,
        items: Sequence[Item],
        digests: list[bytes],
        counts: defaultdict[int, StepCount],
    ) -> list[Item]:
        """The rows that are the first of their kind, in the order of the handovers."""
        kept, here = [], set[bytes]()
        for item in items:
            digest = row_digest(part.stage, item.columns, part.columns)
            if digest in self._seen or digest in here:
                counts[part.stage].dropped += 1
                continue
            here.add(digest)
            kept.append(item)
        digests += here
        return kept

    async def _acceptable(
        self, state: State, record: BatchRecord, passed: Sequence[Passed], failed: list[Failed]
    ) -> list[Passed]:
        """The rows whose requests the batch takes; the others fail at its stage."""
        call = self._edge.call
        if call is None or not passed:
            return list(passed)
        lines = [one.line.encode() for one in passed]
        refused = await self._additions.refused(record, lines)
        _, known = await state.additions.look(record.id, [name_digest(one.id) for one in passed])
        good = []
        for place, (one, line, before) in enumerate(zip(passed, lines, known, strict=True)):
            if (problem := refused.get(place)) is not None:
                reason = (problem.code or "invalid_request", problem.message)
            elif len(line) >= MAX_ADDITION_BYTES:
                reason = ("too_large", f"The request has more than {MAX_ADDITION_BYTES} bytes.")
            elif before is not None:
                reason = ("duplicate_custom_id", "Another row of the pipeline has this name.")
            else:
                good.append(one)
                continue
            failed.append(Failed(one.id, call.stage, *reason))
        return good


def counts_of(edges: Sequence[EdgeLog]) -> dict[int, StepCount]:
    """By stage, the rows that have ended there."""
    return {stage: count for edge in edges for stage, count in sorted(edge.counts.items())}


def _with_end(parts: Sequence[Part]) -> list[Part]:
    """The parts, of which the last one are steps: requests are made together with them."""
    return [*parts] if parts and isinstance(parts[-1], list) else [*parts, []]


def _together(lines: Sequence[bytes], most: int) -> int:
    """How many of the lines one addition may bring: at most `most`."""
    size = 0
    for count, line in enumerate(lines):
        size += len(line) + 1
        if count and (count == most or size > MAX_ADDITION_BYTES):
            return count
    return len(lines)
