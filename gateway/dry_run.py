"""A dry run: what would happen to a batch, without creating it. Runs and stores nothing.

It checks lines as the dispatcher does, and forecasts from what Redis knows of the lane.
"""

import asyncio
import json
import time
from collections import Counter as Count
from collections import defaultdict
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from functools import partial
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gateway.forecast import (
    Forecast,
    LaneForecast,
    PredictedCost,
    combined,
    lane_forecast,
    predicted_cost,
)
from gateway.tally import ContextLength, Tally, Tokens
from gateway.tokens import Counter, load_counter, loaded
from shared.bus.messages import window_seconds
from shared.catalog import Catalog
from shared.dataset.dataset import PinnedDataset
from shared.errors import NotFoundError
from shared.input.problems import unreadable
from shared.input.rows import Row
from shared.input.validation import InputCheck, Limits
from shared.input_places import InputPlaces
from shared.openai.shapes import BatchError, BatchErrors, BatchWarning
from shared.ordering.outlook import Foresight, new_load
from shared.ordering.pace import TokensOfRows, rows_per_second
from shared.state import FileRecord, State
from shared.storage import Storage, why_unreadable
from shared.submission.adapters import adapters_of
from shared.submission.dataset_lines import DatasetLines
from shared.submission.predictions import predicted_of
from shared.submission.warnings import late_warnings
from shared.tenant_rules import TenantRules
from shared.tenant_slots import TenantSlots
from shared.tenants import weights

#: Up to this size, every row of an input is tokenized; larger inputs are sampled.
_COUNTED_BYTES = 8 * 1024 * 1024
#: Dry runs at a time, one for each tenant: each may read and tokenize for seconds.
_AT_ONCE = 2
#: Requests that are shown in full.
_SHOWN = 3


class DryRun(BaseModel):
    """The answer to `create_batch` with `dry_run`: nothing was created."""

    model_config = ConfigDict(frozen=True)

    object: Literal["batch.dry_run"] = "batch.dry_run"
    valid: bool = Field(
        description="Whether every request would run: there are no `errors`, no `refused` "
        "requests, and no `violations` of the context length."
    )
    endpoint: str
    input_file_id: str | None = Field(default=None, description="Null for a dataset.")
    rendered: list[dict[str, Any]] = Field(
        default=[],
        exclude_if=lambda rendered: not rendered,
        description="The first requests that a dataset's rows become.",
    )
    completion_window: str
    model: str | None = Field(description="Null for several.")
    lane: str | None = Field(
        description="Where it would run: the model on its pool. Null for several."
    )
    lanes: list[LaneForecast] = Field(
        default=[],
        exclude_if=lambda lanes: not lanes,
        description="Only present if the requests would go to several lanes.",
    )
    rows: int
    errors: BatchErrors | None = Field(
        description="Why a batch of this file would fail: the first 1,000 reasons, as the batch "
        "would show them."
    )
    more_errors: int
    refused: BatchErrors | None = Field(
        description="Requests that would get an error, found by their lines: the first 1,000. The "
        "batch would run, and they would be lines of its error file."
    )
    more_refused: int
    warnings: list[BatchWarning] = Field(
        default=[],
        description="Fields of the requests that have no effect; and that the batch may be late, "
        "if more than one of five such batches would end after the window.",
    )
    tokens: Tokens
    context_length: ContextLength
    forecast: Forecast | None
    cost: PredictedCost | None = Field(
        description="What it would cost. Null while its lanes have not run enough to know."
    )


class DryRuns:
    """Makes dry runs, a few at a time."""

    def __init__(
        self,
        state: State,
        storage: Storage,
        catalog: Catalog,
        limits: Limits,
        *,
        mixed_batches: bool = False,
        strict_input: bool = True,
        places: InputPlaces | None = None,
        max_dataset_rows: int = 1_000_000,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        """`weights` are those of tenants for which no other is set."""
        self._state = state
        self._storage = storage
        self._catalog = catalog
        self._limits = limits
        self._max_dataset_rows = max_dataset_rows
        self._mixed_batches = mixed_batches
        self._weights = weights or {}
        self._strict_input = strict_input
        self._rules = TenantRules(catalog, places)
        self._slots = TenantSlots(_AT_ONCE)
        self._counters: dict[str, asyncio.Task[Counter]] = {}

    async def run(self, file: FileRecord, *, endpoint: str, completion_window: str) -> DryRun:
        """Report what a batch over this file would do. Raises TransientError."""
        await self._state.tenants.look()
        check = await self._check(endpoint, file.tenant, self._limits)
        tally = Tally(every=1 + file.bytes // _COUNTED_BYTES)
        errors = None
        async with self._slots.taken(file.tenant):
            try:
                await self._read(self._chunks(file), check, tally)
            except NotFoundError as error:
                why = why_unreadable(error)
                errors = [unreadable(file.id, tenant=file.tenant, why=why)]
                # Do not report what was read before the object disappeared.
                check = await self._check(endpoint, file.tenant, self._limits)
                tally = Tally(every=1)
        if errors is None:
            errors = check.problems[: self._limits.problems]
        return await self._report(
            file.tenant,
            check,
            tally,
            errors,
            endpoint=endpoint,
            input_file_id=file.id,
            completion_window=completion_window,
            more_errors=max(0, check.problem_count - len(errors)),
        )

    def turn(self, tenant: str) -> AbstractAsyncContextManager[None]:
        """Hold the tenant's turn to look at rows."""
        return self._slots.taken(tenant)

    async def run_lines(
        self, tenant: str, body: bytes, *, endpoint: str, completion_window: str
    ) -> DryRun:
        """Report what a batch of these lines would do, in a turn. Raises TransientError."""
        await self._state.tenants.look()
        check = await self._check(endpoint, tenant, self._limits)
        tally = Tally(every=1 + len(body) // _COUNTED_BYTES)
        await self._take(await asyncio.to_thread(check.feed, body), tally)
        await self._take(await asyncio.to_thread(check.finish), tally)
        errors = check.problems[: self._limits.problems]
        return await self._report(
            tenant,
            check,
            tally,
            errors,
            endpoint=endpoint,
            completion_window=completion_window,
            more_errors=max(0, check.problem_count - len(errors)),
            rendered=[json.loads(line) for line in body.splitlines()[:_SHOWN]],
        )

    async def run_dataset(
        self, tenant: str, pinned: PinnedDataset, *, endpoint: str, completion_window: str
    ) -> DryRun:
        """Report what a batch over this dataset would do. Raises TransientError."""
        await self._state.tenants.look()
        check = await self._check(endpoint, tenant, self._limits.of_dataset(self._max_dataset_rows))
        size = sum(source.size for source in pinned.sources)
        tally = Tally(every=1 + size // _COUNTED_BYTES)
        dataset = DatasetLines(
            self._storage, pinned, endpoint, self._max_dataset_rows, models=check.models
        )
        async with self._slots.taken(tenant):
            await self._read(dataset.chunks(), check, tally)
        found = dataset.problems
        # As in a batch: the requests are only looked at if all rows could be rendered.
        errors = found.listed or check.problems[: self._limits.problems]
        return await self._report(
            tenant,
            check,
            tally,
            errors,
            endpoint=endpoint,
            completion_window=completion_window,
            more_errors=max(0, (found.count or check.problem_count) - len(errors)),
            rendered=dataset.first,
        )

    async def _report(
        self, tenant: str, check: InputCheck, tally: Tally, errors: list[BatchError], **more: Any
    ) -> DryRun:
        context = tally.context_length()
        rows = self._rows_by_lane(check, tally)
        endpoint = more["endpoint"]
        forecasts = [
            await self._forecast(tenant, endpoint, lane, count) for lane, count in rows.items()
        ]
        has_several = len(forecasts) > 1
        forecast = combined(forecasts)
        late = forecast.finish_p80_at if forecast else None
        ends_at = time.time() + window_seconds(more["completion_window"])
        return DryRun(
            valid=not (errors or tally.refused or context.violations),
            model=check.model,
            lane=None if has_several else next(iter(rows), None),
            lanes=forecasts if has_several else [],
            rows=check.rows,
            errors=_listed(errors),
            refused=_listed(tally.refused),
            more_refused=tally.refused_count - len(tally.refused),
            tokens=tally.tokens(),
            context_length=context,
            forecast=forecast,
            warnings=[*late_warnings(late, expires_at=ends_at), *check.warnings],
            cost=await self._cost(tally),
            **more,
        )

    async def _check(self, endpoint: str, tenant: str, limits: Limits) -> InputCheck:
        settings = self._state.tenants.of(tenant)
        adapters = await adapters_of(self._state, self._rules, tenant)
        return InputCheck(
            endpoint=endpoint,
            models=self._rules.endpoints(settings, adapters),
            limits=limits.of_tenant(settings.custom_id_characters),
            rules=self._rules.of(tenant, adapters),
            is_mixed=self._mixed_batches,
            is_strict=self._strict_input,
        )

    def _chunks(self, file: FileRecord) -> AsyncGenerator[bytes, None]:
        return self._storage.stream(
            file.key, start=file.start, end=file.end, etag=file.etag, bucket=file.bucket
        )

    async def _read(
        self, chunks: AsyncGenerator[bytes, None], check: InputCheck, tally: Tally
    ) -> None:
        async with aclosing(chunks):
            async for chunk in chunks:
                # Neither parsing nor tokenizing may hold up the event loop.
                await self._take(await asyncio.to_thread(check.feed, chunk), tally)
        await self._take(await asyncio.to_thread(check.finish), tally)

    async def _take(self, rows: list[Row], tally: Tally) -> None:
        by_model: defaultdict[str, list[Row]] = defaultdict(list)
        for row in rows:
            by_model[row.model].append(row)
        for model, some in by_model.items():
            counter = await self._counter(model)
            await asyncio.to_thread(partial(tally.add, some, counter))

    async def _counter(self, name: str) -> Counter:
        """The model's counter, loaded once; looked for again while there is no tokenizer."""
        model = self._catalog.model(name)
        task = self._counters.get(model.name)
        if task is None or (task.done() and not task.result().has_tokenizer):
            task = asyncio.create_task(loaded(load_counter, model))
            self._counters[model.name] = task
        # The first caller may hang up.
        return await asyncio.shield(task)

    def _rows_by_lane(self, check: InputCheck, tally: Tally) -> dict[str, TokensOfRows]:
        """The rows that each lane would have; bad ones count too where there is only one lane."""
        if check.model is not None:
            tokens = tally.predicted_by_model[check.model]
            return {self._catalog.lane_of(check.model).name: TokensOfRows(tokens, check.rows)}
        found: dict[str, TokensOfRows] = {}
        for model, count in tally.rows_by_model.items():
            lane = self._catalog.lane_of(model).name
            before = found.get(lane, TokensOfRows(0, 0))
            found[lane] = TokensOfRows(
                before.tokens + tally.predicted_by_model[model], before.rows + count
            )
        return found

    async def _forecast(
        self, tenant: str, endpoint: str, lane: str, what: TokensOfRows
    ) -> LaneForecast:
        ahead, job, outlook = await asyncio.gather(
            self._state.lanes.rows_ahead(lane, tenant=tenant),
            self._state.lanes.job(lane),
            self._state.lanes.outlook(lane),
        )
        foresight = Foresight(outlook, weights(self._state.tenants.own(), self._weights))
        forecast, now = foresight.of(new_load(tenant, endpoint, what)), time.time()
        return lane_forecast(
            lane,
            what.rows,
            forecast and predicted_of(forecast, foreseen_at=now, now=now),
            own_ahead=ahead.own,
            others_ahead=ahead.others,
            rate=job.rate,
            own_rate=rows_per_second(job.pace, endpoint, what),
        )

    async def _cost(self, tally: Tally) -> PredictedCost | None:
        tokens: Count[str] = Count()
        for model, count in tally.predicted_by_model.items():
            tokens[self._catalog.lane_of(model).name] += count
        known = {lane: await self._state.lanes.cost(lane) for lane in tokens}
        return predicted_cost(
            tokens,
            {lane: cost.micros_per_token for lane, cost in known.items()},
            [cost.error for cost in known.values()],
            {name: pool.price_per_hour for name, pool in self._catalog.pools.items()},
            self._catalog.currency,
        )


def _listed(problems: list[BatchError]) -> BatchErrors | None:
    return BatchErrors(data=problems) if problems else None
