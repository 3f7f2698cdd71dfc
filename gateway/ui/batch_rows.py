"""The rows of the list of batches, and which of them a filter lets through."""

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gateway.ui import pace
from gateway.ui.words import duration_range, number, status_text
from shared.lifecycle import FINAL, Status
from shared.openai.shapes import Predicted
from shared.state import BatchRecord, State
from shared.state.paces import Mark

PAGE = 50
#: Batches that are looked at for one page, if a filter lets few through.
_MAX_LOOKED_AT = 2000
_LOOK = 100
#: Marks that tell how long a batch will take.
_LAST_MARKS = 120
_GROUPS: Mapping[str, frozenset[Status]] = {
    "open": frozenset(Status) - FINAL,
    **{status.value: frozenset({status}) for status in Status},
}


class Filter(NamedTuple):
    """What the visitor wants to see: batches in a group of statuses, with some words."""

    status: str = ""
    words: str = ""

    def lets(self, record: BatchRecord) -> bool:
        """Whether the batch is to be shown."""
        if self.status in _GROUPS and record.status not in _GROUPS[self.status]:
            return False
        if self.status == "with_failures" and not _failed(record):
            return False
        fields = record.fields
        text = " ".join(
            fields.get(name, "") for name in ("id", "model", "endpoint", "metadata", "lane")
        )
        return all(word in text.casefold() for word in self.words.casefold().split())


class BatchRow(NamedTuple):
    """A batch as the list shows it."""

    id: str
    label: str
    status: Status
    status_text: str
    is_live: bool
    model: str
    total: int
    done: int
    failed: int
    created_at: int
    note: str


class BatchRows(NamedTuple):
    """Some rows; `after` is where the next ones begin, None at the end."""

    rows: Sequence[BatchRow]
    after: str | None
    #: How many batches were looked at.
    looked_at: int

    @property
    def live_ids(self) -> tuple[str, ...]:
        return tuple(row.id for row in self.rows if row.is_live)


async def batch_rows(
    state: State, tenant: str, wanted: Filter, *, after: str | None = None
) -> BatchRows:
    """The tenant's newest batches after the cursor that the filter lets through."""
    found: list[BatchRecord] = []
    looked_at, has_more = 0, True
    step = PAGE if wanted == Filter() else _LOOK
    while has_more and len(found) < PAGE and looked_at < _MAX_LOOKED_AT:
        records, has_more = await state.batches.page(tenant, after=after, limit=step)
        for record in records:
            looked_at, after = looked_at + 1, record.id
            if wanted.lets(record):
                found.append(record)
            if len(found) == PAGE:
                has_more = has_more or record is not records[-1]
                break
    live = [record.id for record in found if record.status is Status.IN_PROGRESS]
    marks = dict(zip(live, await state.paces.of(live, last=_LAST_MARKS), strict=True))
    now = time.time()
    rows = [batch_row(record, marks.get(record.id, []), now) for record in found]
    return BatchRows(rows, after if has_more else None, looked_at)


def batch_row(record: BatchRecord, marks: Sequence[Mark], now: float) -> BatchRow:
    """The batch as the list shows it."""
    batch = record.to_openai()
    counts = batch.request_counts
    return BatchRow(
        record.id,
        next(iter((batch.metadata or {}).values()), ""),
        batch.status,
        status_text(batch.status, is_paused=batch.paused),
        batch.status not in FINAL,
        batch.model or "",
        counts.total,
        counts.completed + counts.failed,
        counts.failed,
        batch.created_at,
        _note(record, batch.predicted, marks, now),
    )


def _note(
    record: BatchRecord, predicted: Predicted | None, marks: Sequence[Mark], now: float
) -> str:
    """What to expect of it, or what became of it."""
    status = record.status
    if status is Status.FAILED:
        return record.fields.get("first_error", "")
    if record.ended_at is not None:
        took = record.ended_at - record.number("created_at")
        return f"in {duration_range(took, took).removeprefix('about ')}"
    if status is not Status.IN_PROGRESS or "paused" in record.fields:
        return ""
    parts = [] if _done(record) else ["waits for its turn"]
    if left := pace.range_left(predicted, marks, record.number("total"), now):
        rows, _ = pace.rates(marks, now)
        parts += [f"{number(rows)} rows/s"] if rows else []
        parts.append(f"{duration_range(*left)} left")
    return ", ".join(parts)


def _done(record: BatchRecord) -> int:
    return record.number("completed") + record.number("failed")


def _failed(record: BatchRecord) -> int:
    return record.number("failed") + record.number("given_up")
