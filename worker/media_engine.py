"""An engine whose requests may name media by URLs: they are fetched here, and the engine gets data.

The engine itself downloads nothing and holds no login of S3.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any, NamedTuple, Self
from weakref import WeakValueDictionary

from shared.errors import TransientError
from shared.input_places import InputPlaces
from shared.media_fetcher import MediaFetcher, MediaRefusedError
from shared.openai.media import media_refusal
from shared.openai.row_rules import RowRules
from shared.ordering.work import Work
from shared.outbound import Guard
from shared.settings import open_storage
from worker.engine_errors import (
    Engine,
    EngineGoneError,
    EngineUnavailableError,
    Result,
    Results,
)
from worker.engine_results import refusal
from worker.media_lines import MediaLine, media_line, written
from worker.outcomes import worst
from worker.row_limiter import RowLimiter
from worker.settings import WorkerSettings

#: Bytes of a tenant's media that one process holds, as files, for the engine to answer.
_BYTES_PER_TENANT = 256 * 1024 * 1024


class _Row(NamedTuple):
    """A row that names media."""

    position: int
    line: MediaLine
    work: Work


def with_media(engine: Engine, settings: WorkerSettings, rules: RowRules) -> "MediaEngine":
    """The engine, for requests of a model with these rules."""
    guard = Guard(settings.media_networks)
    fetcher = MediaFetcher(
        lambda: open_storage(settings), guard, timeout_seconds=settings.media_seconds
    )
    return MediaEngine(engine, fetcher, rules, settings.places)


class MediaEngine:
    """Belongs to one event loop, as the engine that it stands in front of."""

    def __init__(
        self, engine: Engine, fetcher: MediaFetcher, rules: RowRules, places: InputPlaces
    ) -> None:
        """`rules` are those of the model, and `places` those of all tenants."""
        self._engine = engine
        self._fetcher = fetcher
        self._rules = rules
        self._places = places
        self._held: WeakValueDictionary[str, RowLimiter] = WeakValueDictionary()
        #: By batch, what still waits for its media.
        self._fetching: defaultdict[str, set[asyncio.Task[None]]] = defaultdict(set)

    async def run_lines(
        self, lines: Sequence[bytes], order: Sequence[Work]
    ) -> AsyncGenerator[Results, None]:
        """As the engine does; a line whose media cannot be had gets an error as its result."""
        found = [media_line(line) for line in lines]
        rows = [
            _Row(position, one, order[position])
            for position, one in enumerate(found)
            if one is not None
        ]
        if not rows:
            async with aclosing(self._engine.run_lines(lines, order)) as groups:
                async for group in groups:
                    yield group
            return
        plain = [position for position, one in enumerate(found) if one is None]
        async with _Call().running() as call:
            if plain:
                some = [lines[position] for position in plain]
                works = [order[position] for position in plain]
                call.start(self._run(call, plain, some, works))
            for row in rows:
                task = call.start(self._fetch_and_run(call, row))
                call.waiting.add(task)
                self._fetching[row.work.batch_id].add(task)
                task.add_done_callback(partial(self._no_longer_waits, call, row))
            while (some_results := await call.next()) is not None:
                yield some_results
            call.check()

    async def withdraw(self, batch_id: str) -> None:
        """Take out all lines of the batch that the engine does not run yet."""
        for task in list(self._fetching.get(batch_id, ())):
            task.cancel()
        await self._engine.withdraw(batch_id)

    async def _run(
        self, call: "_Call", positions: Sequence[int], lines: Sequence[bytes], order: Sequence[Work]
    ) -> None:
        try:
            async with aclosing(self._engine.run_lines(lines, order)) as groups:
                async for group in groups:
                    call.put([(positions[number], result) for number, result in group])
        except EngineGoneError as error:
            inside = range(len(positions)) if error.positions is None else error.positions
            raise type(error)(str(error), [positions[number] for number in inside]) from None

    async def _fetch_and_run(self, call: "_Call", row: _Row) -> None:
        limit = self._rules.media.limits.bytes
        held = self._held.setdefault(row.work.tenant, RowLimiter(max(_BYTES_PER_TENANT, limit)))
        async with held.borrowed(limit) as borrowed:
            result, size = await self._fetch(row)
            await borrowed.give_back(limit - size)
            if (task := asyncio.current_task()) is not None:
                self._no_longer_waits(call, row, task)
            if result is not None:
                call.put([(row.position, result)])
            else:
                await self._run(call, [row.position], [written(row.line)], [row.work])

    async def _fetch(self, row: _Row) -> tuple[Result | None, int]:
        """Put the row's media into it; returns why it cannot run, if so, and the bytes fetched."""
        tenant = row.work.tenant
        rules = self._rules.with_places(self._places.of(tenant))
        # Planning has asked the same. The login that is used here may read more than the tenant.
        found = media_refusal(row.line.body, rules.media, extra_fields=rules.extra_fields)
        if found is not None:
            return refusal(f"{found.message}.", param=found.param), 0
        try:
            return None, await self._fetcher.fill(tenant, row.line.wanted, rules.media.limits)
        except MediaRefusedError as error:
            return refusal(f"{error}.", param=error.place), 0
        except TransientError as error:
            raise EngineUnavailableError("S3 is away, and rows name media in it.") from error

    def _no_longer_waits(self, call: "_Call", row: _Row, task: "asyncio.Task[None]") -> None:
        call.waiting.discard(task)
        tasks = self._fetching.get(row.work.batch_id)
        if tasks is not None:
            tasks.discard(task)
            if not tasks:
                self._fetching.pop(row.work.batch_id, None)


class _Call:
    """The parts of one call that run at once, and their results as one."""

    def __init__(self) -> None:
        self._results: asyncio.Queue[Results | None] = asyncio.Queue()
        self._tasks: list[asyncio.Task[None]] = []
        #: Parts of which the engine has seen nothing yet.
        self.waiting: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.ensure_future(work)
        self._tasks.append(task)
        task.add_done_callback(self._ended)
        return task

    def put(self, results: Results) -> None:
        self._results.put_nowait(results)

    async def next(self) -> Results | None:
        """The next results; None when all parts have ended."""
        while not (self._results.empty() and all(task.done() for task in self._tasks)):
            if (results := await self._results.get()) is not None:
                return results
        return None

    def check(self) -> None:
        """Raise for the lines without a result what the engine said of them."""
        errors = [
            error
            for task in self._tasks
            if not task.cancelled() and isinstance(error := task.exception(), Exception)
        ]
        if not errors:
            return
        error = worst(errors)
        if isinstance(error, EngineGoneError):
            gone = [one.positions or () for one in errors if isinstance(one, EngineGoneError)]
            raise type(error)(str(error), sorted(number for some in gone for number in some))
        raise error

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        """Whoever leaves early takes the parts out of the engine."""
        try:
            yield self
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._results.put_nowait(None)
        if not task.cancelled() and task.exception() is not None:
            # The engine is gone or about to be: what it has not seen runs with the next claim.
            for other in self.waiting - {task}:
                other.cancel()
