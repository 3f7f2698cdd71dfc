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
from shared.pipeline.chunks import Tokens, chunks, estimated
from shared.pipeline.declaration import MAX_CHUNKS, MAX_SPLIT_BYTES
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
#: What is known of the tokens of a text.
TokensOf = Callable[[str], Tokens]

_TOGETHER = 200


class Stepper:
    """Takes one row after the other through the steps."""

    def __init__(self, job: StepsJob, tokens_of: Mapping[int, TokensOf]) -> None:
        """`tokens_of` are those that count, by stage. Raises MalformedTemplateError."""
        self._job = job
        self._tokens_of = tokens_of
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
        others = {name: one for name, one in item.columns.items() if name != step.into}
        if len(found) * len(msgspec.json.encode(others)) + len(text) > MAX_SPLIT_BYTES:
            reason = f"the chunks, each with all other columns, have more than {MAX_SPLIT_BYTES}"
            yield Failed(item.id, step.stage, "too_large", f"{reason} bytes, the limit.")
            return
        for place, chunk in enumerate(found):
            columns = {**item.columns, step.into: chunk}
            chunk_item = Item(f"{item.id}#{place}", columns, (*item.order, place))
            yield from self._through(chunk_item, number + 1)

    def _chunks(self, text: str, step: Step) -> Iterator[str]:
        if not text:
            return iter([text])
        tokens = self._tokens_of.get(step.stage, estimated)(text)
        return chunks(text, tokens, step.tokens, step.overlap)

    def _end(self, item: Item) -> Outcome:
        render = self._job.render
        if render is None or self._template is None:
            return Passed(item.id, item.columns, order=item.order)
        try:
            body = self._timed(partial(self._template.render, _names(item.columns)))
        except RowError as fault:
            return _failed(item, render.stage, fault)
        head = msgspec.json.encode({"custom_id": item.id, "method": "POST", "url": render.endpoint})
        line = head[:-1] + b',"body":' + body + b"}"
        return Passed(item.id, item.columns, line.decode(), item.order)

    def _timed(self, work: Callable[[], T]) -> T:
        return bounded(self._job.row_seconds, work)


def _names(columns: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a template sees of a row."""
    return {ROW: columns, **columns}


def _failed(item: Item, stage: int, fault: RowError) -> Failed:
    return Failed(item.id, stage, "invalid_row", f"{fault.param}: {fault.reason}.")


def _tokens_of(tokenizer_file: bytes) -> TokensOf:
    """The tokens as this tokenizer has them, without those that a model adds."""
    # Only where it is needed: it takes a while to load.
    from tokenizers import Tokenizer  # noqa: PLC0415  # as above

    tokenizer = Tokenizer.from_str(tokenizer_file.decode())
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False))

    def tokens(text: str) -> Tokens:
        found = [start for start, _ in tokenizer.encode(text, add_special_tokens=False).offsets]
        # Several tokens may be one character.
        return Tokens(sorted({0, *(one for one in found if one < len(text))}), count)

    return tokens


def _tokenizers(pipes: Pipes, job: StepsJob) -> dict[int, TokensOf]:
    return {
        stage: _tokens_of(RemoteFile(pipes, 1 + number, size).readall())
        for number, (stage, size) in enumerate(sorted(job.tokenizer_sizes.items()))
    }


def main() -> None:
    """Do the job that the parent sends."""
    pipes = Pipes(sys.stdin.buffer, sys.stdout.buffer)
    try:
        job = begin(pipes, StepsJob)
        heed_row_time()
        try:
            stepper = bounded(job.row_seconds, partial(Stepper, job, _tokenizers(pipes, job)))
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
