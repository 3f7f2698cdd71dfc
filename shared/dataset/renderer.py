"""The renderer: a process that makes request lines of a dataset's rows.

What it runs and parses is the tenant's: so it has no environment, no credentials and no network
address, a limit of memory, and a limit of time for each row. It reads by asking its parent.
"""

import os
import random
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import TypeVar

import msgspec

from shared.dataset.carrying import Carrier, MixedTypesError
from shared.dataset.dataset import Dataset, Source
from shared.dataset.formats import (
    MissingColumnError,
    Needed,
    Row,
    UnreadableError,
    rows_of,
)
from shared.dataset.frames import Done, Job, Kind, Problem, encoded, frame
from shared.dataset.pipes import Pipes, RemoteFile, begin
from shared.dataset.row_time import bounded, heed_row_time
from shared.dataset.template import (
    ROW,
    MalformedTemplateError,
    RowError,
    RowFilter,
    RowTemplate,
)

T = TypeVar("T")

_LINES_BYTES = 1024 * 1024
_MAX_COLUMNS_TOLD = 30


class Rendering:
    """One job: rows in, lines out."""

    def __init__(self, job: Job, pipes: Pipes) -> None:
        """Raises MalformedTemplateError."""
        self._job = job
        self._pipes = pipes
        self._dataset = Dataset.model_validate_json(bytes(job.pinned.dataset))
        self._template = RowTemplate(self._dataset.template)
        self._filter = RowFilter(self._dataset.filter) if self._dataset.filter else None
        self._carrier = Carrier(self._dataset.carry)
        self._problems = 0
        self._read = 0
        self._rows = 0

    def run(self) -> None:
        """Send the lines, the problems and the end."""
        begin = b'{"custom_id":'
        middle = b',"method":"POST","url":%s,"body":' % msgspec.json.encode(self._job.endpoint)
        waiting, size = [], 0
        for number, row in islice(self._wanted(), self._most_rows()):
            line = self._line(number, row, begin, middle)
            if line is None:
                if self._problems >= self._job.max_problems:
                    break
                continue
            self._rows += 1
            self._carry(self._carrier.keep(row))
            waiting.append(line)
            size += len(line)
            if size >= _LINES_BYTES:
                self._pipes.send(frame(Kind.LINES, b"".join(waiting)))
                waiting, size = [], 0
        if waiting:
            self._pipes.send(frame(Kind.LINES, b"".join(waiting)))

    def end(self) -> None:
        """Send the end."""
        self._carry(self._carrier.end())
        self.done()

    def done(self) -> None:
        """Say that nothing follows."""
        self._pipes.send(encoded(Kind.DONE, Done(self._read, self._rows, self._problems)))

    def tell(self, code: str, message: str, param: str, row: int | None = None) -> None:
        """Send a problem."""
        self._problems += 1
        self._pipes.send(encoded(Kind.PROBLEM, Problem(code, message, param, row)))

    def _carry(self, chunks: Iterator[bytes]) -> None:
        """Send what goes along."""
        if not self._carrier.columns:
            return
        for chunk in chunks:
            self._pipes.send(frame(Kind.CARRIED, chunk))

    def _most_rows(self) -> int:
        # One more than allowed, so that the parent sees that there are too many.
        most = self._job.max_rows + 1
        return most if self._dataset.limit is None else min(most, self._dataset.limit)

    def _wanted(self) -> Iterator[tuple[int, Row]]:
        """The rows that the filter and the sample let through, numbered from 1."""
        sample = self._dataset.sample
        for number, row in enumerate(self._all_rows(), start=1):
            self._read = number
            if self._filter is not None:
                try:
                    if not self._timed(partial(self._filter.wants, {ROW: row, **row})):
                        continue
                except RowError as fault:
                    self._tell_of_row(number, fault)
                    continue
            if sample is not None and _draw(sample.seed, number) >= sample.fraction:
                continue
            yield number, row

    def _all_rows(self) -> Iterator[Row]:
        names = {*self._template.columns, *(self._filter.columns if self._filter else ())}
        has_all = ROW in names
        wanted = {name for name in (self._dataset.custom_id,) if name}
        needed = Needed(names - {ROW} | wanted, has_all=has_all, carrier=self._carrier)
        for number, source in enumerate(self._job.pinned.sources):
            file = RemoteFile(self._pipes, number, source.size)
            try:
                yield from rows_of(source, file, needed)
            except MissingColumnError as missing:
                self._tell_of_column(source, missing, self._dataset.custom_id)
                return
            except UnreadableError as error:
                self.tell("unreadable_dataset", f"{source.name}: {error}.", "input.objects", None)
                return

    def _line(self, number: int, row: Row, begin: bytes, middle: bytes) -> bytes | None:
        try:
            custom_id = self._custom_id(number, row)
            body = self._timed(partial(self._template.render, {ROW: row, **row}))
        except RowError as fault:
            self._tell_of_row(number, fault)
            return None
        return b"".join((begin, msgspec.json.encode(custom_id), middle, body, b"}\n"))

    def _custom_id(self, number: int, row: Row) -> str:
        column = self._dataset.custom_id
        if column is None:
            return f"row-{number}"
        value = row.get(column)
        if isinstance(value, bool) or not isinstance(value, str | int):
            reason = f"column '{column}' must hold texts or integers, not a {_kind(value)}"
            raise RowError("custom_id", reason)
        return str(value)

    def _timed(self, work: Callable[[], T]) -> T:
        return bounded(self._job.row_seconds, work)

    def _tell_of_row(self, number: int, fault: RowError) -> None:
        message = f"Row {number}, {fault.param}: {fault.reason}."
        self.tell("invalid_row", message, f"input.{fault.param}", number)

    def _tell_of_column(
        self, source: Source, missing: MissingColumnError, custom_id: str | None
    ) -> None:
        names = ", ".join(missing.has[:_MAX_COLUMNS_TOLD])
        more = len(missing.has) - _MAX_COLUMNS_TOLD
        names += f" and {more} more" if more > 0 else ""
        param = "custom_id" if missing.name == custom_id else self._user_of(missing.name)
        self.tell(
            "unknown_column",
            f"{param}: {source.name} has no column '{missing.name}'. Its columns are: {names}.",
            f"input.{param}",
        )

    def _user_of(self, column: str) -> str:
        if column in self._template.columns:
            return "template"
        return "carry" if column in self._dataset.carry else "filter"


def _kind(value: object) -> str:
    return "null" if value is None else type(value).__name__


def _draw(seed: int, number: int) -> float:
    """A number from 0 to 1 that is the same for the same seed and row."""
    return random.Random(seed << 64 | number).random()


def main() -> None:
    """Do the job that the parent sends."""
    pipes = Pipes(sys.stdin.buffer, sys.stdout.buffer)
    try:
        job = begin(pipes, Job)
        heed_row_time()
        try:
            # Jinja computes what is constant while it compiles.
            rendering = bounded(job.row_seconds, partial(Rendering, job, pipes))
        except MalformedTemplateError as fault:
            problem = Problem("invalid_template", f"{fault}.", f"input.{fault.problem.param}")
            pipes.send(encoded(Kind.PROBLEM, problem))
            pipes.send(encoded(Kind.DONE, Done(0, 0, 1)))
            return
        except (TimeoutError, MemoryError):
            # The parent says so.
            os._exit(1)
        try:
            rendering.run()
            rendering.end()
        except MixedTypesError as error:
            rendering.tell("mixed_types", f"input.carry: {error}.", "input.carry")
            rendering.done()
    except (EOFError, BrokenPipeError):
        # The parent is gone, or has heard enough.
        os._exit(1)


if __name__ == "__main__":
    main()
