"""Takes a batch from `validating` to `in_progress` or `failed`: one pass over its input plans it.

A plan is byte ranges of the input object. Rows are copied only where engines gain from another
order (`grouping`).
"""

import asyncio
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from itertools import count
from typing import NamedTuple

import structlog

from dispatcher.cutter import Cutter
from dispatcher.datasets import DatasetInputs
from dispatcher.grouping import Grouping
from dispatcher.input_chunks import InputRefusedError, UnansweredError, input_chunks, is_small
from dispatcher.lane_outlooks import LaneOutlooks
from dispatcher.row_cache import RowCache
from dispatcher.row_span import RowSpan, SpanLimits
from dispatcher.traces import step
from shared import crash
from shared.catalog import Catalog
from shared.errors import (
    BrokenObjectError,
    InvalidTransitionError,
    NotFoundError,
    TransientError,
)
from shared.input.problems import unreadable
from shared.input.rows import Row
from shared.input.validation import InputCheck, Limits
from shared.input_places import InputPlaces
from shared.lane_shares import LaneShares
from shared.ledger.commits import Commit, carry_out, fail, read_commit
from shared.ledger.plans import Plan, create_plan, replace_plan_pin
from shared.ledger.quarantine import set_aside
from shared.lifecycle import Event, Status
from shared.openai.limits import amount_code, amount_text
from shared.openai.shapes import BatchError, BatchWarning
from shared.slices import Slice
from shared.slicing import SliceLimits
from shared.state import (
    BatchRecord,
    MovedError,
    QueueFullError,
    Quota,
    Start,
    State,
)
from shared.storage import Storage, why_unreadable
from shared.submission.adapters import adapters_of
from shared.submission.additions import catch_up_all
from shared.submission.opening import start_open
from shared.tenant_rules import TenantRules

log = structlog.get_logger()

_NO_QUOTA = Quota(requests=0, tokens=0)
#: A batch of so many rows is small: any engine has seats for them besides others.
_SMALL_ROWS = 8
#: Slices that are written to Redis at a time.
_SLICES_A_WRITE = 100
#: A batch waits this long for an input that S3 fails for while it answers for other objects.
_UNANSWERED_SECONDS = 120.0


class Started(NamedTuple):
    """A batch whose rows wait for engines now."""

    batch_id: str
    tenant: str
    lanes: tuple[str, ...]
    slices: int
    rows: int

    @property
    def is_small(self) -> bool:
        return self.slices == 1 and self.rows <= _SMALL_ROWS


class Planner:
    """Plans batches. Two planners of one batch are harmless, since only one plan is accepted."""

    def __init__(
        self,
        state: State,
        storage: Storage,
        catalog: Catalog,
        *,
        slice_limits: SliceLimits,
        max_rows: int,
        max_embedding_inputs: int = 50_000,
        max_custom_id_characters: int = 512,
        max_input_bytes: int = 209_715_200,
        quota: Quota = _NO_QUOTA,
        mixed_batches: bool = False,
        strict_input: bool = True,
        spans: SpanLimits | None = None,
        weights: Mapping[str, float] | None = None,
        places: InputPlaces | None = None,
        datasets: DatasetInputs | None = None,
        cache: RowCache | None = None,
    ) -> None:
        """With limits for spans, rows that begin alike may be put in groups within one."""
        self._state = state
        self._storage = storage
        self._catalog = catalog
        self._cache = cache
        self._rules = TenantRules(catalog, places)
        self._slice_limits = slice_limits
        self._limits = Limits(
            rows=max_rows,
            embedding_inputs=max_embedding_inputs,
            custom_id_characters=max_custom_id_characters,
        )
        self._max_input_bytes = max_input_bytes
        self._datasets = datasets or DatasetInputs(
            state, storage, max_rows=max_rows, max_bytes=max_input_bytes
        )
        self._quota = quota
        self._mixed_batches = mixed_batches
        self._strict_input = strict_input
        self._spans = spans
        self._grouping = Grouping(state, storage)
        self._outlooks = LaneOutlooks(state, weights)
        # Threads that parse share one interpreter lock, so many of them gain nothing and delay the
        # event loop and small inputs by as much.
        self._large = asyncio.Lock()
        #: Since when S3 fails for the inputs of batches, on the monotonic clock.
        self._unanswered: dict[str, float] = {}

    async def plan(self, batch_id: str) -> Started | None:
        """Validate the batch's input and let the batch start, or fail with every reason.

        Returns what has started, if this planner has let it.
        """
        record = await self._state.batches.get(batch_id)
        if record.status is not Status.VALIDATING:
            return None
        with step("plan", record):
            return await self._plan(record)

    async def _plan(self, record: BatchRecord) -> Started | None:
        batch_id = record.id
        crash.point("planner.begin")
        if "open_model" in record.fields:
            await start_open(self._state, self._storage, self._catalog, record)
            await catch_up_all(self._state, self._storage, batch_id)
            return None
        plan = _new_plan()
        await self._state.tenants.look()
        is_dataset = "dataset" in record.fields
        check = self._check(
            record.fields["endpoint"],
            tenant=record.tenant,
            offset=record.number("start"),
            max_rows=self._datasets.max_rows if is_dataset else None,
            adapters=await adapters_of(self._state, self._rules, record.tenant),
        )
        shares = LaneShares(self._catalog)
        slices: list[Slice] = []
        try:
            record, slices = await self._read_input(record, check, plan, shares)
            problems, count = check.problems, check.problem_count
        except InputRefusedError as error:
            problems, count = error.problems, error.count
        except InvalidTransitionError as error:
            # It was cancelled while its input was made.
            log.warning("plan.late", batch_id=batch_id, status=error.status)
            return None
        except UnansweredError:
            raise
        except TransientError:
            # An outage says nothing about the input.
            self._unanswered.pop(batch_id, None)
            raise
        self._unanswered.pop(batch_id, None)
        crash.point("planner.sliced")
        started = None
        try:
            if problems:
                await self._refuse(batch_id, problems, count=count)
            else:
                started = await self._start(record, check, plan, shares, slices)
            crash.point("planner.applied")
        except InvalidTransitionError as error:
            # It has been cancelled, or another planner was first: nothing is left to do.
            log.warning("plan.late", batch_id=batch_id, status=error.status)
        return started

    async def look_at_lanes(self) -> None:
        """Learn what `plan_inline` depends on. Raises TransientError."""
        await self._state.tenants.look()
        await self._outlooks.look([lane.name for lane in self._catalog.lanes()])

    def plan_inline(
        self,
        endpoint: str,
        body: bytes,
        *,
        offset: int,
        tenant: str,
        priority: int = 5,
        expires_at: int,
        has_cache: bool = False,
    ) -> Start | None:
        """The plan of an input at hand, which begins at `offset` of its object.

        None if `plan` must decide: the input has problems, is large, is for several lanes, needs a
        copy or may gain from one, or its rows may have been answered before.
        """
        if len(body) > self._max_input_bytes or has_cache:
            return None
        check = self._check(endpoint, tenant=tenant, offset=offset)
        shares = LaneShares(self._catalog)
        cutter = self._cutter(shares)
        spans = cutter.take(check.feed(body)) + cutter.take(check.finish()) + cutter.finish()
        if check.problems or len(shares.all) != 1:
            return None
        if any(span.repeats or span.has_bad_lines for span in spans):
            return None
        slices = [slice_ for span in spans for slice_ in cutter.cut(span)]
        slices += cutter.cut_rest()
        if len(slices) > _SLICES_A_WRITE:
            return None
        shares.count(slices)
        ends, warnings = self._outlooks.predicted_end(
            tenant, endpoint, shares.tokens, priority=priority, expires_at=expires_at
        )
        fields = {
            **self._fields(check, shares),
            **self._outlooks.predicted_cost(shares.tokens),
            **ends,
            **_warnings([*warnings, *check.refusals, *check.warnings]),
        }
        quota = self._quota_of(shares, tenant)
        return Start(_new_plan(), shares.all[0].lane, slices, fields, quota)

    def _check(
        self,
        endpoint: str,
        *,
        tenant: str,
        offset: int,
        max_rows: int | None = None,
        adapters: frozenset[str] = frozenset(),
    ) -> InputCheck:
        settings = self._state.tenants.of(tenant)
        limits = self._limits.of_tenant(settings.custom_id_characters)
        return InputCheck(
            endpoint=endpoint,
            models=self._rules.endpoints(settings, adapters),
            limits=limits if max_rows is None else limits.of_dataset(max_rows),
            rules=self._rules.of(tenant, adapters),
            is_mixed=self._mixed_batches,
            is_strict=self._strict_input,
            offset=offset,
        )

    async def _read_input(
        self, record: BatchRecord, check: InputCheck, plan: str, shares: LaneShares
    ) -> tuple[BatchRecord, list[Slice]]:
        """What `_read` does, of a dataset once it is rendered; the record names what was read.

        Raises InputRefusedError if there is nothing to read.
        """
        if record.number("size") > self._max_input_bytes:
            raise InputRefusedError([self._too_large(record)])
        file_id = record.fields["input_file_id"]
        try:
            if "dataset" in record.fields:
                record = await self._datasets.input_of(record, check.models)
            return record, await self._read(record, check, plan, shares)
        except NotFoundError as error:
            why = why_unreadable(error)
            problem = unreadable(file_id, tenant=record.tenant, why=why)
            raise InputRefusedError([problem]) from error
        except UnansweredError as error:
            now = time.monotonic()
            if now < self._unanswered.setdefault(record.id, now) + _UNANSWERED_SECONDS:
                raise
            problem = unreadable(file_id, tenant=record.tenant, why="unavailable")
            raise InputRefusedError([problem]) from error

    async def _read(
        self, record: BatchRecord, check: InputCheck, plan: str, shares: LaneShares
    ) -> list[Slice]:
        """Stream the input once and store its slices, which `shares` counts."""
        cutter, waiting = self._cutter(shares), list[Slice]()
        written: list[Slice] = []
        copies = (f"{plan}-{number:06d}" for number in count())

        async def write(min_slices: int) -> None:
            """Store waiting slices until fewer than this many are left."""
            if check.problems:
                # The batch will be refused, so its slices are not needed.
                waiting.clear()
            while len(waiting) >= min_slices:
                some = waiting[:_SLICES_A_WRITE]
                await self._state.slices.plan(
                    record.id, plan, shares.slices, some, lanes=shares.lanes
                )
                shares.count(some)
                written.extend(some)
                del waiting[:_SLICES_A_WRITE]

        async def cut(spans: list[RowSpan]) -> None:
            for span in spans:
                if not check.problems:
                    name = next(copies)
                    waiting.extend(await self._grouping.cut(record, cutter, span, copy=name))
                await write(_SLICES_A_WRITE)

        turn = self._turn_of(record)
        async for chunk in input_chunks(self._storage, record):
            async with turn:
                # Parsing would block the event loop for too long.
                rows = await asyncio.to_thread(check.feed, chunk)
            rows = await self._with_answers(record, rows)
            async with turn:
                spans = await asyncio.to_thread(cutter.take, rows)
            await cut(spans)
        rows = await self._with_answers(record, check.finish())
        await cut(cutter.take(rows) + cutter.finish())
        waiting += cutter.cut_rest()
        await write(1)
        return written

    async def _with_answers(self, record: BatchRecord, rows: list[Row]) -> list[Row]:
        """The rows, with the answers of those that the batch need not ask again."""
        if self._cache is None or not self._cache.is_wanted(record):
            return rows
        return await self._cache.look(record, rows)

    def _turn_of(self, record: BatchRecord) -> AbstractAsyncContextManager[object]:
        """Chunks of large inputs are parsed one at a time, and a small input passes them."""
        return nullcontext() if is_small(record) else self._large

    def _cutter(self, shares: LaneShares) -> Cutter:
        return Cutter(shares, self._slice_limits, self._spans)

    async def _start(
        self,
        record: BatchRecord,
        check: InputCheck,
        plan: str,
        shares: LaneShares,
        slices: list[Slice],
    ) -> Started | None:
        started = Started(record.id, record.tenant, tuple(shares.lanes), shares.slices, check.rows)
        if started.is_small:
            await self._announce(shares)
        quota = self._quota_of(shares, record.tenant)
        try:
            await self._outlooks.look(shares.lanes)
            ends, warnings = self._outlooks.predicted_end(
                record.tenant,
                record.fields["endpoint"],
                shares.tokens,
                priority=record.number("priority"),
                expires_at=record.number("expires_at"),
            )
            fields = {
                **_place(record),
                **self._fields(check, shares),
                **self._outlooks.predicted_cost(shares.tokens),
                **ends,
                **_warnings([*warnings, *check.refusals, *check.warnings]),
            }
            is_ours = await self._apply(record.id, plan, fields, slices, quota)
        except QueueFullError as error:
            full = shares.all[error.number]
            share, limit = shares.sequences, quota.requests
            if error.queue == "tokens":
                limits = (quota.tokens, *quota.more_tokens)
                share, limit = full.prompt_tokens, limits[error.number]
            problem = _queue_full(record, error, full.model.name, limit, share)
            await self._refuse(record.id, [problem], count=1)
            return None
        if not is_ours:
            return None
        log.info(
            "batch.planned",
            batch_id=record.id,
            lane=" ".join(shares.lanes),
            requests=check.rows,
            refused=check.refused,
            slices=shares.slices,
        )
        return started

    async def _announce(self, shares: LaneShares) -> None:
        """Tell the lane that a small batch is coming, if its engine can make way by then."""
        [share] = shares.all
        if share.model.runner == "pooling":
            await self._state.ring(f"coming:{share.lane}")

    async def _apply(
        self,
        batch_id: str,
        name: str,
        fields: Mapping[str, str | int],
        slices: list[Slice],
        quota: Quota,
    ) -> bool:
        """INPUT_ACCEPTED with the plan that S3 keeps: this one, unless another was first.

        Raises as `State.apply` does.
        """
        _, pin = await self._state.batches.pinned(batch_id)
        wanted = Plan(fields=fields, slices=slices, **pin._asdict())
        plan = await create_plan(self._storage, batch_id, wanted)
        crash.point("planner.kept")
        if plan is not wanted:
            # The first planner may have found the queue full.
            if (refusal := await self._refusal(batch_id)) is not None:
                await carry_out(self._state, self._storage, refusal)
                return False
            if plan.slices != slices:
                name = secrets.token_hex(4)
                await self._store(batch_id, name, plan)
        while True:
            try:
                return await self._state.apply(
                    batch_id,
                    Event.INPUT_ACCEPTED,
                    {**plan.fields, "plan": name},
                    quota=quota,
                    pin=plan.pin,
                )
            except MovedError:
                _, pin = await self._state.batches.pinned(batch_id)
                plan = await replace_plan_pin(self._storage, batch_id, plan, pin)

    async def _refusal(self, batch_id: str) -> Commit | None:
        try:
            return await read_commit(self._storage, batch_id, Event.INPUT_REJECTED)
        except NotFoundError:
            return None
        except BrokenObjectError as error:
            log.error("commit.broken", batch_id=batch_id, key=error.key, reason=error.reason)  # noqa: TRY400  # the reason says it all
            await set_aside(self._storage, error.key)
            return None

    async def _store(self, batch_id: str, name: str, plan: Plan) -> None:
        lanes = str(plan.fields["lane"]).split()
        for first in range(0, len(plan.slices), _SLICES_A_WRITE):
            some = plan.slices[first : first + _SLICES_A_WRITE]
            await self._state.slices.plan(batch_id, name, first, some, lanes=lanes)

    def _quota_of(self, shares: LaneShares, tenant: str) -> Quota:
        settings = self._state.tenants.of(tenant)
        # Adapters share their model's engine, and so its queue.
        first, *others = (
            settings.enqueued_tokens or share.model.max_enqueued_tokens or self._quota.tokens
            for share in shares.all
        )
        return Quota(settings.enqueued_requests or self._quota.requests, first, tuple(others))

    @staticmethod
    def _fields(check: InputCheck, shares: LaneShares) -> dict[str, str | int]:
        """What INPUT_ACCEPTED writes, except for the plan's name."""
        model = {"model": check.model} if check.model else {}
        return {**model, "total": check.rows, **shares.fields()}

    def _too_large(self, record: BatchRecord) -> BatchError:
        return BatchError(
            code="too_large",
            param="file_id",
            message=f"The batch input file {record.fields['input_file_id']} is larger than the "
            f"{self._max_input_bytes} maximum: it has {record.number('size')} bytes.",
        )

    async def _refuse(self, batch_id: str, problems: list[BatchError], *, count: int) -> None:
        fields = {
            "errors": json.dumps([problem.model_dump() for problem in problems]),
            "first_error": problems[0].message,
        }
        await fail(self._state, self._storage, batch_id, Event.INPUT_REJECTED, fields)
        log.info("batch.refused", batch_id=batch_id, problems=count or len(problems))


def _place(record: BatchRecord) -> dict[str, str | int]:
    """Where the rendered input of a dataset is: from now on, all that the batch reads."""
    if "dataset" not in record.fields:
        return {}
    return {name: record.fields[name] for name in ("bucket", "key", "etag", "size")}


def _warnings(found: Sequence[BatchWarning]) -> dict[str, str]:
    return {"warnings": json.dumps([one.model_dump() for one in found])} if found else {}


def _new_plan() -> str:
    return secrets.token_hex(4)


def _queue_full(
    record: BatchRecord, full: QueueFullError, model: str, limit: int, share: int
) -> BatchError:
    text = amount_text(
        full.queue,
        tenant=record.tenant,
        limit=limit,
        used=full.used,
        model=model,
    )
    text += f" This batch {'alone ' if share > limit else ''}has {share:,}."
    return BatchError(code=amount_code(full.queue), message=text)
