"""A dry run: what would become of a batch, without making one. Runs nothing and keeps nothing.

The same line check as the dispatcher's, and a forecast from what Redis knows of the lane.
"""

import asyncio
import time
from collections import Counter as Count
from collections import defaultdict
from collections.abc import AsyncIterator
from functools import partial
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from gateway.tokens import Counted, Counter, Method, load_counter
from shared.catalog import Catalog
from shared.errors import NotFoundError
from shared.input.validation import InputCheck, Limits, Row, unreadable
from shared.openai.shapes import BatchErrors
from shared.state import FileRecord, State
from shared.storage import Storage, why_unreadable

#: Bytes of input up to which every row is tokenized; of a larger input about as many are.
_COUNTED_BYTES = 8 * 1024 * 1024
#: Of a call's time, for the rows of the sample, and again for long rows outside of it.
_COUNT_SECONDS = 3.0
_AT_ONCE = 2
_MOST_VIOLATIONS = 1000
#: Every request for a text has at least one token as its output.
_LEAST_OUTPUT = 1
#: What they say, the least first: of several ways of counting the least is told.
_NOTES: dict[Method, str] = {
    "bytes": "The model's tokenizer is not at hand: one token for each 4 bytes of a line.",
    "tokenizer_without_template": "Counted by the model's own tokenizer, from the texts alone: "
    "what the chat template adds to them is not counted.",
    "tokenizer": "Counted by the model's own tokenizer, with its chat template for chats.",
}


class _Shape(BaseModel):
    model_config = ConfigDict(frozen=True)


class Tokens(_Shape):
    """Tokens of the whole input, as far as they can be told before it runs."""

    input: int = Field(description="of all prompts; an estimate if `is_estimate`")
    output: int = Field(
        description="what the requests ask for at most; 256 a choice where one sets no limit"
    )
    counted_by: Method
    rows_counted: int = Field(description="rows whose prompts were tokenized")
    is_estimate: bool
    note: str = Field(description="what was counted, in words")


class Violation(_Shape):
    """A request that is longer than the model's context."""

    line: int
    input_tokens: int | None = Field(
        description="null where the requested output alone is too long"
    )
    output_tokens: int = Field(
        description="what it asks for at most, or the one that there must be"
    )


class ContextLength(_Shape):
    """Requests that the model would refuse: prompt and output do not fit into its context."""

    max_model_len: int | None = Field(
        description="null when the gateway cannot know it, or for several models"
    )
    rows_checked: int = Field(description="rows of which it is certain that they fit, or do not")
    violations: list[Violation] = Field(description="the first 1,000")
    more_violations: int


class Forecast(_Shape):
    """When a batch of these rows would be done if it were created now."""

    finish_at: int | None = Field(description="Unix seconds; null while the lane has no known rate")
    rows_ahead: int = Field(description="rows of the lane's running batches without a result")
    rows_per_second: float | None = Field(description="the lane's last measured rate")


class LaneForecast(Forecast):
    """What one of several lanes would have of the batch."""

    name: str
    rows: int


class DryRun(_Shape):
    """The answer to `create_batch` with `dry_run`: nothing was created."""

    object: Literal["batch.dry_run"] = "batch.dry_run"
    valid: bool = Field(description="whether a batch of this file would start")
    endpoint: str
    input_file_id: str
    completion_window: str
    model: str | None = Field(description="null for several")
    lane: str | None = Field(
        description="where it would run: the model on its pool; null for several"
    )
    lanes: list[LaneForecast] = Field(
        default=[],
        exclude_if=lambda lanes: not lanes,
        description="there only where the requests would go to several lanes",
    )
    rows: int
    errors: BatchErrors | None = Field(description="the first 1,000, as the batch would show them")
    more_errors: int
    tokens: Tokens
    context_length: ContextLength
    forecast: Forecast | None


class DryRuns:
    """Makes dry runs, a few at a time: one may read and tokenize for seconds."""

    def __init__(
        self,
        state: State,
        storage: Storage,
        catalog: Catalog,
        limits: Limits,
        *,
        mixed_batches: bool = False,
    ) -> None:
        self._state = state
        self._storage = storage
        self._catalog = catalog
        self._limits = limits
        self._mixed_batches = mixed_batches
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._counters: dict[str, asyncio.Task[Counter]] = {}

    async def run(self, file: FileRecord, *, endpoint: str, completion_window: str) -> DryRun:
        """Say what a batch of this file would be. Raises TransientError."""
        check = InputCheck(
            endpoint=endpoint,
            models=self._catalog.endpoints_by_name(),
            limits=self._limits,
            is_mixed=self._mixed_batches,
        )
        tally = Tally(every=1 + file.bytes // _COUNTED_BYTES)
        async with self._slots:
            try:
                await self._read(file, check, tally)
            except NotFoundError as error:
                lost = unreadable(file.id, tenant=file.tenant, why=why_unreadable(error))
                check = InputCheck(endpoint, {}, problems=[lost], problem_count=1)
                tally = Tally(every=1)
        listed = check.problems[: check.limits.problems]
        rows = self._rows_by_lane(check, tally)
        forecasts = [await self._forecast(lane, count) for lane, count in rows.items()]
        has_several = len(forecasts) > 1
        return DryRun(
            valid=not check.problems,
            endpoint=endpoint,
            input_file_id=file.id,
            completion_window=completion_window,
            model=check.model,
            lane=None if has_several else next(iter(rows), None),
            lanes=forecasts if has_several else [],
            rows=check.rows,
            errors=BatchErrors(data=listed) if listed else None,
            more_errors=check.problem_count - len(listed),
            tokens=tally.tokens(),
            context_length=tally.context_length(),
            forecast=_together(forecasts),
        )

    async def _read(self, file: FileRecord, check: InputCheck, tally: "Tally") -> None:
        async for chunk in self._chunks(file):
            # Neither parsing nor tokenizing may hold up the event loop.
            await self._take(await asyncio.to_thread(check.feed, chunk), tally)
        await self._take(await asyncio.to_thread(check.finish), tally)

    async def _take(self, rows: list[Row], tally: "Tally") -> None:
        by_model: defaultdict[str, list[Row]] = defaultdict(list)
        for row in rows:
            by_model[row.model].append(row)
        for model, some in by_model.items():
            counter = await self._counter(model)
            await asyncio.to_thread(partial(tally.add, some, counter))

    async def _chunks(self, file: FileRecord) -> AsyncIterator[bytes]:
        source = self._storage.stream(
            file.key, start=file.start, end=file.end, etag=file.etag, bucket=file.bucket
        )
        async for chunk in source:
            yield chunk

    async def _counter(self, name: str) -> Counter:
        """The model's counter, loaded once; looked for again while there is no tokenizer."""
        model = self._catalog.model(name)
        task = self._counters.get(model.name)
        if task is None or (task.done() and not task.result().has_tokenizer):
            task = asyncio.create_task(asyncio.to_thread(load_counter, model))
            self._counters[model.name] = task
        # Whoever asked first may hang up.
        return await asyncio.shield(task)

    def _rows_by_lane(self, check: InputCheck, tally: "Tally") -> dict[str, int]:
        """The rows that each lane would have; bad ones count too where there is only one lane."""
        if check.model is not None:
            return {self._catalog.lane_of(check.model).name: check.rows}
        rows: Count[str] = Count()
        for model, count in tally.rows_by_model.items():
            rows[self._catalog.lane_of(model).name] += count
        return rows

    async def _forecast(self, lane: str, rows: int) -> LaneForecast:
        rate = (await self._state.lanes.job(lane)).rate
        ahead = await self._state.lanes.rows_ahead(lane)
        seconds = (ahead + rows) / rate if rate > 0 else None
        return LaneForecast(
            name=lane,
            rows=rows,
            finish_at=None if seconds is None else int(time.time() + seconds),
            rows_ahead=ahead,
            rows_per_second=rate or None,
        )


def _together(forecasts: list[LaneForecast]) -> Forecast | None:
    """The forecast of a whole batch: it is done when its last lane is."""
    if not forecasts:
        return None
    ends = [one.finish_at for one in forecasts if one.finish_at is not None]
    return Forecast(
        finish_at=max(ends) if len(ends) == len(forecasts) else None,
        rows_ahead=sum(one.rows_ahead for one in forecasts),
        rows_per_second=forecasts[0].rows_per_second if len(forecasts) == 1 else None,
    )


class Tally:
    """Adds up rows: tokenizes every one, or one in `every` and those that may be too long."""

    def __init__(self, *, every: int, seconds: float = _COUNT_SECONDS) -> None:
        self._every = every
        self._sample_seconds = seconds
        self._suspect_seconds = seconds
        #: By endpoint and model.
        self._counters: dict[tuple[str, str], Counter] = {}
        self.rows_by_model: Count[str] = Count()
        self._rows = 0
        self._output = 0
        self._counted = _Sum()
        self._sampled = _Sum()
        self._bytes = 0
        self._is_exact = True
        self._checked = 0
        self._violations: list[Violation] = []
        self._violation_count = 0

    def add(self, rows: list[Row], counter: Counter) -> None:
        """Take good rows, in order; blocks for as long as it tokenizes."""
        for row in rows:
            self._counters[row.url, row.model] = counter
            self.rows_by_model[row.model] += 1
            self._output += row.output
            self._bytes += len(row.line)
            counted = self._count(row, counter)
            self._rows += 1
            self._check(row, counted, counter)

    def tokens(self) -> Tokens:
        """The sums so far, the uncounted rows estimated from the sample by their bytes."""
        told = {counter.method(url) for (url, _), counter in self._counters.items()}
        method: Method = next((one for one in _NOTES if one in told), "bytes")
        left = self._bytes - self._counted.bytes
        basis = self._sampled if self._sampled.bytes else _Sum(tokens=1, bytes=4, rows=0)
        is_whole = self._counted.rows == self._rows
        note = _NOTES[method]
        if not is_whole and method != "bytes":
            note += f" {self._counted.rows} of {self._rows} rows; the others by their bytes."
        return Tokens(
            input=self._counted.tokens + left * basis.tokens // basis.bytes,
            output=self._output,
            counted_by=method,
            rows_counted=self._counted.rows,
            is_estimate=not (is_whole and self._is_exact) and self._rows > 0,
            note=note,
        )

    def context_length(self) -> ContextLength:
        """What is known of rows that are too long."""
        lengths = {counter.max_model_len for counter in self._counters.values()}
        return ContextLength(
            max_model_len=lengths.pop() if len(lengths) == 1 else None,
            rows_checked=self._checked,
            violations=sorted(self._violations, key=lambda one: one.line),
            more_violations=self._violation_count - len(self._violations),
        )

    def _count(self, row: Row, counter: Counter) -> Counted | None:
        """Tokenize the row if it is its turn, or if it may be too long, while there is time."""
        if not counter.has_tokenizer:
            return None
        is_sampled = self._rows % self._every == 0 and self._sample_seconds > 0
        if not is_sampled and not (self._suspect_seconds > 0 and self._may_be_long(row, counter)):
            return None
        began = time.perf_counter()
        counted = counter.count(row.url, row.line)
        seconds = time.perf_counter() - began
        self._counted.add(row, counted)
        self._is_exact = self._is_exact and counted.is_exact
        if is_sampled:
            self._sample_seconds -= seconds
            self._sampled.add(row, counted)
        else:
            self._suspect_seconds -= seconds
        return counted

    def _check(self, row: Row, counted: Counted | None, counter: Counter) -> None:
        most = counter.max_model_len
        if most is None:
            return
        output = self._needed(row)
        if counted is not None and counted.at_least + output > most:
            self._report(row, counted.at_least, output)
        elif output >= most:
            self._report(row, None, output)
        elif (counted is not None and counted.is_exact) or (
            counter.has_tokenizer and not self._may_be_long(row, counter)
        ):
            self._checked += 1

    def _report(self, row: Row, tokens: int | None, output: int) -> None:
        self._checked += 1
        self._violation_count += 1
        if len(self._violations) < _MOST_VIOLATIONS:
            self._violations.append(
                Violation(line=row.number, input_tokens=tokens, output_tokens=output)
            )

    def _may_be_long(self, row: Row, counter: Counter) -> bool:
        """False only if the row fits even with a token for each of its bytes."""
        most = counter.max_model_len
        longest = len(row.line) + counter.overhead + self._needed(row)
        return most is not None and longest > most

    def _needed(self, row: Row) -> int:
        return (row.limit or _LEAST_OUTPUT) if row.output else 0


class _Sum:
    def __init__(self, *, tokens: int = 0, bytes: int = 0, rows: int = 0) -> None:  # noqa: A002
        self.tokens = tokens
        self.bytes = bytes
        self.rows = rows

    def add(self, row: Row, counted: Counted) -> None:
        self.tokens += counted.total
        self.bytes += len(row.line)
        self.rows += 1
