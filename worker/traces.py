"""Spans of what lane jobs and waves do: waves, slices, and calls to the engine."""

import time
from collections.abc import Collection
from types import TracebackType
from typing import Self

from shared.slices import Claim
from shared.tracing import spans
from shared.tracing.span import Span
from shared.tracing.trace_context import of_batch
from worker.outcomes import SliceResult
from worker.row_notes import RowNote, RowNotes

#: GenAI's words for what an endpoint does; other endpoints are named by their last word.
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
}


def wave(name: str, lane: str, claims: Collection[Claim], *, number: int | None = None) -> Span:
    """The span of slices of many batches that run together; it has a link to each batch."""
    links = {claim.batch_id: _parent(claim) for claim in claims}
    span = spans.linked(name, links=list(links.values()))
    if span.is_recorded:
        span.set(
            {
                "batchyard.lane": lane,
                "batchyard.slices": len(claims),
                "batchyard.rows.total": sum(claim.slice.rows for claim in claims),
                **({} if number is None else {"batchyard.wave.number": number}),
            }
        )
    return span


def slice_run(claim: Claim, *, wave: str) -> Span:
    """The span of a slice's run, below its batch's, with a link to the wave that it is part of."""
    span = spans.span("run slice", parent=_parent(claim), links=[wave])
    if span.is_recorded:
        span.set(
            {
                "batchyard.batch.id": claim.batch_id,
                "batchyard.lane": claim.lane,
                "batchyard.slice.index": claim.index,
                "batchyard.slice.epoch": claim.epoch,
                "batchyard.rows.total": claim.slice.rows,
            }
        )
    return span


def note_result(span: Span, result: SliceResult) -> None:
    """Say how a slice's run ended."""
    if not span.is_recorded:
        return
    usage = result.body.usage
    span.set(
        {
            "batchyard.slice.outcome": result.outcome.value,
            "batchyard.rows.completed": usage.completed,
            "batchyard.rows.failed": usage.failed,
            "gen_ai.usage.input_tokens": usage.input_tokens,
            "gen_ai.usage.output_tokens": usage.output_tokens,
        }
    )
    if result.outcome.is_trouble:
        span.fail(result.outcome.value)


def engine_call(claim: Claim, rows: int, *, parent: str) -> "EngineCall":
    """One call of the engine with some of a slice's rows; `parent` is the slice's span."""
    return EngineCall(claim, rows, parent) if parent else _UNRECORDED


class EngineCall:
    """The span of a call of the engine, from the start of its `with` block to the end."""

    def __init__(self, claim: Claim, rows: int, parent: str) -> None:
        model = claim.lane.rpartition("@")[0]
        operation = _OPERATIONS.get(claim.endpoint) or claim.endpoint.rpartition("/")[2]
        self._row_numbers = claim.slice.row_numbers
        self._notes = RowNotes()
        self._began_at, self._began = time.time(), time.monotonic()
        self._span = spans.span(f"{operation} {model}", "client", parent=parent)
        self._span.set(
            {
                "gen_ai.operation.name": operation,
                "gen_ai.provider.name": "vllm",
                "gen_ai.request.model": model,
                "batchyard.rows.total": rows,
            }
        )

    def __enter__(self) -> Self:
        self._span.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for name, row in self._notes.samples():
            attributes = {
                "batchyard.row.number": row.number,
                "http.response.status_code": row.status,
            }
            self._span.add_event(name, attributes, at=self._began_at + row.seconds)
        failed, slow = len(self._notes.failed), len(self._notes.slow)
        self._span.set({"batchyard.rows.failed": failed, "batchyard.rows.slow": slow})
        self._span.__exit__(kind, error, traceback)

    def note(self, position: int, status: int) -> None:
        """Note that the row at this position of the slice has a result with this status."""
        row = self._row_numbers[position]
        self._notes.add(RowNote(row, status, time.monotonic() - self._began))


class _Unrecorded(EngineCall):
    """A call that nobody records."""

    def __init__(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        pass

    def note(self, position: int, status: int) -> None:
        pass


_UNRECORDED = _Unrecorded()


def _parent(claim: Claim) -> str:
    return of_batch(claim.batch_id, claim.traceparent)
