"""The stepper: a process that takes rows through stages without a model.

Filters and templates are the tenant's, so it is bounded as the renderer of datasets is.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import msgspec

from shared.dataset.frames import Done, Kind, Problem, encoded, frame
from shared.dataset.pipes import Pipes, RemoteFile, begin
from shared.dataset.row_time import bounded, heed_row_time
from shared.dataset.template import ROW, MalformedTemplateError, RowError, RowFilter, RowTemplate
from shared.pipeline.chunks import chunks, estimated_starts
from shared.pipeline.declaration import MAX_CHUNKS
from shared.pipeline.stepping import (
    Dropped,
    Failed,
    Item,
    Outcome,
    Passed,
    Step,
    StepsJob,
    items_of,
    lines_of,
)

T = TypeVar("T")

_TOGETHER = 200


class Stepper:
    """Takes one row after the other through the steps."""

    def __init__(self, job: StepsJob, starts_of: Callable[[str], list[int]]) -> None:
        """`starts_of` says where the tokens of a text begin. Raises MalformedTemplateError."""
        self._job = job
        self._starts_of = starts_of
        self._filters = {step.stage: RowFilter(step.filter) for step in job.steps if step.filter}
        self._template = RowTemplate(job.render.template) if job.render else None

    def outcomes(self, item: Item) -> Iterator[Outcome]:
        """What becomes of the row."""
        yield from self._through(item, 0)

    def _through(self, item: Item, number: int) -> Iterator[Outcome]:
        if number == len(self._job.steps):
            yield self._end(item)
            return
        step = self._job.steps[number]
        if not step.filter:
            yield from self._split(item, number)
            return
        wants = self._filters[step.stage].wants
        try:
            is_wanted = self._timed(partial(wants, _names(item.columns)))
        except RowError as fault:
            yield _failed(item, step.stage, fault)
            return
        if is_wanted:
            yield from self._through(item, number + 1)
        else:
            yield Dropped(item.id, step.stage)

    def _split(self, item: Item, number: int) -> Iterator[Outcome]:
        step = self._job.steps[number]
        text = item.columns.get(step.column)
        if not isinstance(text, str):
            reason = f"column '{step.column}' must hold a text, not a {type(text).__name__}"
            yield Failed(item.id, step.stage, "no_text", f"{reason}.")
            return
        found = list(islice(self._chunks(text, step), MAX_CHUNKS + 1))
        if len(found) > MAX_CHUNKS:
            reason = f"the text has more than {MAX_CHUNKS} chunks, the limit"
            yield Failed(item.id, step.stage, "too_many_chunks", f"{reason}.")
            return
        for place, chunk in enumerate(found):
            columns = {**item.columns, step.into: chunk}
            yield from self._through(Item(f"{item.id}#{place}", columns), number + 1)

    def _chunks(self, text: str, step: Step) -> Iterator[str]:
        if not text:
            return iter([text])
        return chunks(text, self._starts_of(text), step.tokens, step.overlap)

    def _end(self, item: Item) -> Outcome:
        render = self._job.render
        if render is None or self._template is None:
            return Passed(item.id, item.columns)
        try:
            body = self._timed(partial(self._template.render, _names(item.columns)))
        except RowError as fault:
            return _failed(item, render.stage, fault)
        head = msgspec.json.encode({"custom_id": item.id, "method": "POST", "url": render.endpoint})
        line = head[:-1] + b',"body":' + body + b"}"
        return Passed(item.id, item.columns, line.decode())

    def _timed(self, work: Callable[[], T]) -> T:
        return bounded(self._job.row_seconds, work)


def _names(columns: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a template sees of a row."""
    return {ROW: columns, **columns}


def _failed(item: Item, stage: int, fault: RowError) -> Failed:
    return Failed(item.id, stage, "invalid_row", f"{fault.param}: {fault.reason}.")


def _starts_of(pipes: Pipes, job: StepsJob) -> Callable[[str], list[int]]:
    """The tokens of the job's tokenizer; without one, an estimate."""
    if not job.tokenizer_size:
        return estimated_starts
    # Only where it is needed: it takes a while to load.
    from tokenizers import Tokenizer  # noqa: PLC0415  # as above

    tokenizer = Tokenizer.from_str(RemoteFile(pipes, 1, job.tokenizer_size).readall().decode())
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def starts(text: str) -> list[int]:
        found = [start for start, _ in tokenizer.encode(text, add_special_tokens=False).offsets]
        # Several tokens may be one character.
        return sorted({0, *(one for one in found if one < len(text))})

    return starts


def main() -> None:
    """Do the job that the parent sends."""
    pipes = Pipes(sys.stdin.buffer, sys.stdout.buffer)
    try:
        job = begin(pipes, StepsJob)
        heed_row_time()
        try:
            stepper = bounded(job.row_seconds, partial(Stepper, job, _starts_of(pipes, job)))
        except MalformedTemplateError as fault:
            problem = Problem("invalid_template", f"{fault}.", fault.problem.param)
            pipes.send(encoded(Kind.PROBLEM, problem))
            pipes.send(encoded(Kind.DONE, Done(0, 0, 1)))
            return
        except (TimeoutError, MemoryError):
            # The parent says so.
            os._exit(1)
        items = items_of(RemoteFile(pipes, 0, job.size).readall())
        made = (outcome for item in items for outcome in stepper.outcomes(item))
        while some := list(islice(made, _TOGETHER)):
            pipes.send(frame(Kind.LINES, lines_of(some)))
        pipes.send(encoded(Kind.DONE, Done(len(items), 0, 0)))
    except (EOFError, BrokenPipeError):
        # The parent is gone, or has heard enough.
        os._exit(1)


if __name__ == "__main__":
    main()
