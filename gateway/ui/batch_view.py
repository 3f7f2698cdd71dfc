"""What the page of one batch shows: how far it is, what it waits for, and what happened to it."""

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gateway.dependencies import Services
from gateway.explain import explain_batch
from gateway.explanation import Explanation
from gateway.reasons import shown
from gateway.ui import pace
from gateway.ui.words import duration, duration_range, event_text, status_text
from shared.lifecycle import FINAL, PAUSABLE, Status
from shared.openai.shapes import Batch
from shared.state import BatchRecord
from shared.state.outbox import Entry
from shared.state.paces import Mark

_CANCELLABLE = frozenset({Status.VALIDATING, Status.IN_PROGRESS, Status.FINALIZING})


class Moment(NamedTuple):
    """Something that happened to the batch."""

    at: float
    text: str
    #: How long it took until then, in words; empty for the first one.
    since: str


class BatchView(NamedTuple):
    """Everything that the page of one batch shows."""

    batch: Batch
    tenant: str
    priority: int
    status_text: str
    is_live: bool
    done: int
    moments: Sequence[Moment]
    explanation: Explanation
    left: str
    rates: tuple[float, float]
    rows_plot: pace.Plot | None
    tokens_plot: pace.Plot | None
    #: How many slices each lane job has or had, as far as is known.
    ran: Mapping[str, int]

    @property
    def may_cancel(self) -> bool:
        return self.batch.status in _CANCELLABLE

    @property
    def may_pause(self) -> bool:
        return self.batch.status in PAUSABLE and not self.batch.paused

    @property
    def may_retry(self) -> bool:
        """Some of its requests have failed or never ran, and its input was good."""
        counts = self.batch.request_counts
        return not self.is_live and counts.completed < counts.total


async def batch_view(services: Services, record: BatchRecord) -> BatchView:
    """The batch as it is now."""
    state, now = services.state, time.time()
    explanation = await explain_batch(record, services)
    [events] = await state.events.history([record.id])
    [marks] = await state.paces.of([record.id])
    [batch] = await shown(services.storage, [record])
    is_live = batch.status not in FINAL
    return BatchView(
        batch=batch,
        tenant=record.tenant,
        priority=record.number("priority"),
        status_text=status_text(batch.status, is_paused=batch.paused),
        is_live=is_live,
        done=batch.request_counts.completed + batch.request_counts.failed,
        moments=_moments(events),
        explanation=explanation,
        left=_left(batch, marks, now) if is_live else "",
        rates=pace.rates(marks, now) if batch.status is Status.IN_PROGRESS else (0.0, 0.0),
        rows_plot=pace.plot(marks, "Requests"),
        tokens_plot=pace.plot(marks, "Tokens", of_tokens=True),
        ran=await state.positions.jobs(record.id),
    )


def _left(batch: Batch, marks: Sequence[Mark], now: float) -> str:
    """When it will be done, as a range; empty if nobody knows."""
    if batch.paused or batch.status is not Status.IN_PROGRESS:
        return ""
    left = pace.range_left(batch.predicted, marks, batch.request_counts.total, now)
    return f"{duration_range(*left)} left" if left else ""


def _moments(events: Sequence[Entry]) -> list[Moment]:
    found: list[Moment] = []
    for event in events:
        at = int(event.fields["at_ms"]) / 1000
        since = duration(at - found[-1].at) if found else ""
        text = event_text(event.fields["type"])
        if first_error := event.snapshot().get("first_error"):
            text = f"{text}: {first_error}"
        found.append(Moment(at, text, since))
    return found
