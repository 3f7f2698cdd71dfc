"""Tries settings of an engine on this machine, with rows of a file, and tells how fast each is.

It has a Ray of its own, which ends with it, and with it all engines that it has started.
"""

import asyncio
import itertools
import json
import os
import secrets
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from shared.card_share import card_share
from shared.catalog import Catalog, Lane, Model, Pool
from shared.catalog_file import load_catalog
from shared.errors import SetupError
from shared.ordering.work import Work
from worker.engine_environment import runs_in_core_process
from worker.engine_errors import (
    EngineFailedError,
    EngineGoneError,
    EngineUnavailableError,
    Results,
)
from worker.engine_need import needs
from worker.engine_sizes import DEFAULT_MAX_NUM_BATCHED_TOKENS, rows_ahead, rows_of_call
from worker.front_count import BY_ITSELF, asked_fronts, config_of, fronts_of
from worker.tune_search import Limits, Search, Setting

#: How many rows one call may bring that are tried, by those that it brings by itself.
_PARTS_OF_CALL = (0.25, 0.5, 2, 4)
#: Of the time of a measurement, that in which the engine becomes warm.
_WARM_PART = 0.3
_SHORTEST, _LONGEST = 5.0, 60.0
#: Of all time, that of one measurement.
_PART = 0.04
#: Ray is told of as many processors: whether the machine has them is the operator's question.
_CPUS = 1024
_CLIENT_ERROR = 400
#: They are asked again and again.
_MOST_LINES = 10_000


class Rate(NamedTuple):
    """How fast an engine was."""

    rows_per_second: float
    failed: int


@dataclass
class Count:
    """The rows of one measurement."""

    #: Answered once the engine was warm: a row that fails may cost nothing.
    done: int = 0
    #: Since the beginning.
    answered: int = 0
    failed: int = 0

    def note(self, group: Results, *, is_warm: bool) -> None:
        """These have come."""
        failed = sum(status >= _CLIENT_ERROR for _, (status, *_) in group)
        answered = len(group) - failed
        self.failed += failed
        self.answered += answered
        self.done += answered if is_warm else 0

    def rate(self, seconds: float) -> Rate:
        """The engine was warm for so long. Raises SetupError if it has refused all rows."""
        if self.failed and not self.answered:
            raise SetupError("The engine refuses the rows of the file: run `batchyard check`.")
        return Rate(self.done / seconds, self.failed)


class Rows:
    """The rows of the file for one model, again and again; each time they share no cache."""

    def __init__(self, lines: Sequence[bytes]) -> None:
        self._lines = lines
        self._numbers = itertools.count()
        # The answers of a batch's rows are kept.
        self._batch_id = f"batch_{secrets.token_hex(8)}"

    def take(self, count: int) -> tuple[list[bytes], list[Work]]:
        numbers = list(itertools.islice(self._numbers, count))
        now = time.time()
        works = [
            Work(
                self._batch_id, number, "tune", 0, now, now + 86_400, 1.0,
                cache_salt=f"{self._batch_id}-{number // len(self._lines)}",
            )
            for number in numbers
        ]  # fmt: skip
        return [self._lines[number % len(self._lines)] for number in numbers], works


def tune(path: Path, name: str, rows: Path, *, minutes: float, pool: str | None) -> int:
    """Print a JSON object for each setting that was tried, and one for the best. Returns 0.

    Raises SetupError for what the operator has to fix.
    """
    import ray

    catalog = load_catalog(path)
    if name not in catalog.models:
        raise SetupError(f"{path}: there is no model `{name}`")
    model = catalog.models[name]
    pool = pool or model.pools[0]
    if pool not in model.pools:
        raise SetupError(f"{path}: models.{name}.pools: it does not run on `{pool}`")
    lines = lines_for(model, rows)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.pop("RAY_ADDRESS", None)
    ray.init("local", num_cpus=_CPUS, include_dashboard=False, log_to_driver=False)
    try:
        machine = ray.cluster_resources()  # type: ignore[no-untyped-call]  # Ray's
        if reason := lacking(model, catalog.pools[pool], machine):
            raise SetupError(f"{path}: models.{name}: on pool `{pool}`: {reason}")
        trials = Tuning(model, catalog.pools[pool], lines, seconds=60 * minutes)
        asyncio.run(trials.run())
    finally:
        ray.shutdown()
    return 0


def lines_for(model: Model, path: Path) -> list[bytes]:
    """The lines of an input file that are for this model: the first ones, if they are many.

    Raises SetupError if there are none.
    """
    try:
        with path.open("rb") as file:
            own = (line.rstrip(b"\r\n") for line in file if _model_of(line) in model.served_names)
            found = list(itertools.islice(own, _MOST_LINES))
    except OSError as error:
        raise SetupError(f"{path}: cannot be read: {error.strerror}") from error
    if not found:
        raise SetupError(f"{path}: no line is a request for the model `{model.name}`")
    return found


def _model_of(line: bytes) -> str | None:
    with suppress(ValueError, TypeError, KeyError, RecursionError):
        named = json.loads(line)["body"]["model"]
        return named if isinstance(named, str) else None
    return None


def first_setting(model: Model, pool: Pool) -> Setting:
    """What the catalog says now, and what follows from the model and this machine."""
    fronts = asked_fronts(model, pool)
    if fronts == BY_ITSELF:
        processors = len(os.sched_getaffinity(0))
        fronts = fronts_of(model, config_of(model.source), processors)
    tokens = model.engine.get("max_num_batched_tokens", DEFAULT_MAX_NUM_BATCHED_TOKENS)
    return Setting(model.seats, int(tokens), fronts, 1)


def limits_of(model: Model, pool: Pool) -> Limits:
    """How far the walk may go."""
    has_card = pool.accelerator_type is not None or "GPU" in pool.resources
    # A part of a card, or several, is what the operator has decided.
    is_whole = has_card and card_share(pool) == 1 and runs_in_core_process(model, pool)
    fronts = 1 if model.tenant_lora else max(1, (os.cpu_count() or 1) // 2)
    return Limits(fronts=min(8, fronts), replicas=8 if is_whole else 1)


def lacking(model: Model, pool: Pool, machine: Mapping[str, float]) -> str | None:
    """Why no engine can start on a machine that has this; Ray would wait for another one.

    None if one can.
    """
    [engine] = needs(trial_catalog(model, pool, first_setting(model, pool)))
    needed: Counter[str] = Counter()
    for bundle in engine.bundles:
        needed.update(bundle)
    missing = {name: amount for name, amount in needed.items() if amount > machine.get(name, 0)}
    if not missing:
        return None
    told = ", ".join(f"{name}: {amount:g}" for name, amount in missing.items())
    return (
        f"an engine needs {{{told}}}, which this machine does not have. Run this on a machine of "
        "the pool, or name the pool that this machine is of: --pool"
    )


def trial_catalog(model: Model, pool: Pool, setting: Setting) -> Catalog:
    """The catalog of one engine with this setting, on this machine alone."""
    resources = {name: pool.resources[name] for name in ("CPU", "GPU") if name in pool.resources}
    if setting.replicas > 1:
        resources["GPU"] = 1 / setting.replicas
    own = pool.model_copy(update={"resources": resources, "label_selector": {}})
    engine = {
        **model.engine,
        "max_num_seqs": setting.seats,
        "max_num_batched_tokens": setting.batched_tokens,
    }
    entry = model.model_copy(
        update={
            "pools": ("tuned",),
            "engine": engine,
            "fronts": setting.fronts,
            "min_replicas": setting.replicas,
            "max_replicas": setting.replicas,
            "idle_seconds": 86_400.0,
        }
    )
    return Catalog(pools={"tuned": own}, models={model.name: entry})


class Tuning:
    """Tries settings until the time is over, or none is left."""

    def __init__(self, model: Model, pool: Pool, lines: Sequence[bytes], *, seconds: float) -> None:
        self._model = model
        self._pool = pool
        self._rows = Rows(lines)
        self._ends_at = time.monotonic() + seconds
        self._measured = min(_LONGEST, max(_SHORTEST, _PART * seconds))
        self._search = Search(first_setting(model, pool), limits_of(model, pool))
        #: How many rows of one call were the fastest, with the first engine.
        self._best_step = rows_of_call(model)

    async def run(self) -> None:
        """Raises SetupError if not even the catalog's own setting gives answers."""
        while (setting := self._search.next()) is not None and self._has_time():
            is_first = not self._search.rates
            rate, reason = await self._try(setting, with_steps=is_first)
            if is_first and rate is None:
                raise SetupError(f"The engine of `{self._model.name}`: {reason}")
            self._search.note(setting, rate.rows_per_second if rate else 0.0)
            tell("setting", **setting._asdict(), **_told(rate), reason=reason)
        rates = self._search.rates
        first, best = next(iter(rates)), self._search.best
        tell(
            "best",
            **best._asdict(),
            rows_per_call=self._best_step,
            rows_per_second=rates[best],
            before=rates[first],
            first=first._asdict(),
            tried=len(rates),
        )

    def _has_time(self) -> bool:
        return time.monotonic() < self._ends_at

    async def _try(
        self, setting: Setting, *, with_steps: bool = False
    ) -> tuple[Rate | None, str | None]:
        """How fast the engine is; or why it is not there."""
        catalog = trial_catalog(self._model, self._pool, setting)
        try:
            async with _engine(catalog) as client:
                step = rows_of_call(catalog.models[self._model.name])
                rate = await self._rate(client, setting, step)
                if with_steps:
                    await self._try_steps(client, setting, rate)
        except (EngineFailedError, EngineGoneError, EngineUnavailableError) as error:
            return None, str(error)
        return rate, None

    async def _try_steps(self, client: Any, setting: Setting, known: Rate) -> None:
        own = rows_of_call(self._model)
        rates = {own: known.rows_per_second}
        for step in (max(1, int(part * own)) for part in _PARTS_OF_CALL):
            if step not in rates and self._has_time():
                rates[step] = (await self._rate(client, setting, step)).rows_per_second
                tell("rows_per_call", rows_per_call=step, rows_per_second=rates[step])
        self._best_step = max(rates, key=lambda step: rates[step])

    async def _rate(self, client: Any, setting: Setting, step: int) -> Rate:
        """Keep the engine full for a while. Raises SetupError if it refuses all rows."""
        calls = max(2, rows_ahead(self._model, setting.seats * setting.replicas) // step)
        began = time.monotonic()
        warm_at, ends_at = began + _WARM_PART * self._measured, began + self._measured
        count = Count()

        async def call() -> None:
            while True:
                lines, works = self._rows.take(step)
                async with aclosing(client.run_lines(lines, works)) as groups:
                    async for group in groups:
                        count.note(group, is_warm=time.monotonic() >= warm_at)

        running = [asyncio.ensure_future(call()) for _ in range(calls)]
        try:
            await asyncio.wait(
                running,
                timeout=ends_at - time.monotonic(),
                return_when=asyncio.FIRST_EXCEPTION,
            )
            for one in running:
                if one.done():
                    one.result()
        finally:
            for one in running:
                one.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        return count.rate(time.monotonic() - warm_at)


@asynccontextmanager
async def _engine(catalog: Catalog) -> AsyncIterator[Any]:
    """The client of an engine that answers; it is gone afterwards."""
    from ray import serve

    from worker.engine_client import EngineClient
    from worker.engine_deployment import ensure_engine

    [name] = catalog.models
    lane = Lane(name, "tuned")
    app = catalog.app_name(lane)
    try:
        client = EngineClient(await asyncio.to_thread(ensure_engine, catalog, lane))
        await client.wake()
        yield client
    finally:
        await asyncio.to_thread(serve.delete, app)


def _told(rate: Rate | None) -> dict[str, Any]:
    if rate is None:
        return {"rows_per_second": None}
    return {"rows_per_second": rate.rows_per_second, "failed": rate.failed}


def tell(event: str, **fields: object) -> None:
    """Write a line for whoever has started this process."""
    rounded: Iterator[tuple[str, object]] = (
        (name, round(value, 2) if isinstance(value, float) else value)
        for name, value in fields.items()
    )
    sys.stdout.write(json.dumps({"event": event, **dict(rounded)}) + "\n")
    sys.stdout.flush()
