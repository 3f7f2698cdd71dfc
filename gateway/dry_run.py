"""A dry run: what would happen to a batch, without creating it. Runs and stores nothing.

It checks lines as the dispatcher does, and forecasts from what Redis knows of the lane.
"""

import asyncio
import time
from collections import defaultdict
from functools import partial
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from gateway.forecast import Forecast, LaneForecast, combined, lane_forecast
from gateway.tally import ContextLength, Tally, Tokens
from gateway.tokens import Counter, load_counter
from shared.catalog import Catalog
from shared.errors import NotFoundError
from shared.input.problems import unreadable
from shared.input.rows import Row
from shared.input.validation import InputCheck, Limits
from shared.input_places import InputPlaces
from shared.lane_waits import starts_in
from shared.openai.shapes import BatchError, BatchErrors
from shared.ordering.pace import TokensOfRows, rows_per_second
from shared.state import FileRecord, State
from shared.storage import Storage, why_unreadable
from shared.tenant_rules import TenantRules

#: Up to this size, every row of an input is tokenized; larger inputs are sampled.
_COUNTED_BYTES = 8 * 1024 * 1024
#: Dry runs at a time: each may read and tokenize for seconds.
_MAX_AT_ONCE = 2


class DryRun(BaseModel):
    """The answer to `create_batch` with `dry_run`: nothing was created."""

    model_config = ConfigDict(frozen=True)

    object: Literal["batch.dry_run"] = "batch.dry_run"
    valid: bool = Field(
        description="Whether every request would run: there are no `errors`, no `refused` "
        "requests, and no `violations` of the context length."
    )
    endpoint: str
    input_file_id: str
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
        description="Requests that the engine would answer with an error, found by their bodies: "
        "the first 1,000. The batch would run, and they would be lines of its error file."
    )
    more_refused: int
    tokens: Tokens
    context_length: ContextLength
    forecast: Forecast | None


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
        places: InputPlaces | None = None,
    ) -> None:
        self._state = state
        self._storage = storage
        self._catalog = catalog
        self._limits = limits
        self._mixed_batches = mixed_batches
        self._rules = TenantRules(catalog, places)
        self._slots = asyncio.Semaphore(_MAX_AT_ONCE)
        self._counters: dict[str, asyncio.Task[Counter]] = {}

    async def run(self, file: FileRecord, *, endpoint: str, completion_window: str) -> DryRun:
        """Report what a batch over this file would do. Raises TransientError."""
        await self._state.tenants.look()
        check = self._check(endpoint, file.tenant)
        tally = Tally(every=1 + file.bytes // _COUNTED_BYTES)
        errors = None
        async with self._slots:
            try:
                await self._read(file, check, tally)
            except NotFoundError as error:
                why = why_unreadable(error)
                errors = [unreadable(file.id, tenant=file.tenant, why=why)]
                # Do not report what was read before the object disappeared.
                check, tally = self._check(endpoint, file.tenant), Tally(every=1)
        if errors is None:
            errors = check.problems[: self._limits.problems]
        context = tally.context_length()
        rows = self._rows_by_lane(check, tally)
        forecasts = [
            await self._forecast(file.tenant, endpoint, lane, count) for lane, count in rows.items()
        ]
        has_several = len(forecasts) > 1
        return DryRun(
            valid=not (errors or tally.refused or context.violations),
            endpoint=endpoint,
            input_file_id=file.id,
            completion_window=completion_window,
            model=check.model,
            lane=None if has_several else next(iter(rows), None),
            lanes=forecasts if has_several else [],
            rows=check.rows,
            errors=_listed(errors),
            more_errors=max(0, check.problem_count - len(errors)),
            refused=_listed(tally.refused),
            more_refused=tally.refused_count - len(tally.refused),
            tokens=tally.tokens(),
            context_length=context,
            forecast=combined(forecasts),
        )

    def _check(self, endpoint: str, tenant: str) -> InputCheck:
        settings = self._state.tenants.of(tenant)
        return InputCheck(
            endpoint=endpoint,
            models=settings.usable(self._catalog.endpoints_by_name()),
            limits=self._limits.of_tenant(settings.custom_id_characters),
            rules=self._rules.of(tenant),
            is_mixed=self._mixed_batches,
        )

    async def _read(self, file: FileRecord, check: InputCheck, tally: Tally) -> None:
        async for chunk in self._storage.stream(
            file.key, start=file.start, end=file.end, etag=file.etag, bucket=file.bucket
        ):
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
            task = asyncio.create_task(asyncio.to_thread(load_counter, model))
            self._counters[model.name] = task
        # The first caller may hang up.
        return await asyncio.shield(task)

    def _rows_by_lane(self, check: InputCheck, tally: Tally) -> dict[str, TokensOfRows]:
        """The rows that each lane would have; bad ones count too where there is only one lane."""
        if check.model is not None:
            tokens = tally.tokens_by_model[check.model]
            return {self._catalog.lane_of(check.model).name: TokensOfRows(tokens, check.rows)}
        found: dict[str, TokensOfRows] = {}
        for model, count in tally.rows_by_model.items():
            lane = self._catalog.lane_of(model).name
            before = found.get(lane, TokensOfRows(0, 0))
            found[lane] = TokensOfRows(
                before.tokens + tally.tokens_by_model[model], before.rows + count
            )
        return found

    async def _forecast(
        self, tenant: str, endpoint: str, lane: str, what: TokensOfRows
    ) -> LaneForecast:
        ahead, job, engine = await asyncio.gather(
            self._state.lanes.rows_ahead(lane, tenant=tenant),
            self._state.lanes.job(lane),
            self._state.engines.one(lane),
        )
        now = time.time()
        return lane_forecast(
            lane,
            what.rows,
            own_ahead=ahead.own,
            others_ahead=ahead.others,
            rate=job.rate,
            now=now,
            own_rate=rows_per_second(job.pace, endpoint, what),
            starts_in=starts_in(job.to_start(), engine, now=now),
        )


def _listed(problems: list[BatchError]) -> BatchErrors | None:
    return BatchErrors(data=problems) if problems else None
