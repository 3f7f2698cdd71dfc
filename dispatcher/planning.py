"""From `validating` to `in_progress` or `failed`: one pass over the input makes the plan.

No row is copied: the plan is byte ranges of the input object.
"""

import asyncio
import hashlib
import json
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

import structlog

from dispatcher.slicing import SliceLimits, Slicer
from shared import crash
from shared.catalog import Catalog, Model
from shared.errors import InvalidTransitionError, NotFoundError
from shared.input.validation import InputCheck, Limits, Row, unreadable
from shared.ledger.commits import carry_out, fail, read_commit
from shared.ledger.plans import Plan, create_plan, replace_plan_pin
from shared.lifecycle import Event, Status
from shared.openai.limits import queue_code, queue_text
from shared.openai.shapes import BatchError
from shared.slices import Slice
from shared.state import (
    BatchRecord,
    MovedError,
    QueueFullError,
    Quota,
    QuotaKind,
    Start,
    State,
)
from shared.storage import ChangedError, Storage, why_unreadable

log = structlog.get_logger()

_SMALL_BYTES = 1024 * 1024
_NO_QUOTA = Quota(requests=0, tokens=0)
#: Slices written to Redis at a time.
_WRITE = 100


class Planner:
    """Plans batches; two planners of one batch are harmless, since only one plan is accepted."""

    def __init__(
        self,
        state: State,
        storage: Storage,
        catalog: Catalog,
        *,
        slice_limits: SliceLimits,
        max_rows: int,
        max_embedding_inputs: int = 50_000,
        max_input_bytes: int = 209_715_200,
        quota: Quota = _NO_QUOTA,
        mixed_batches: bool = False,
    ) -> None:
        self._state = state
        self._storage = storage
        self._catalog = catalog
        self._models = catalog.endpoints_by_name()
        self._slice_limits = slice_limits
        self._limits = Limits(rows=max_rows, embedding_inputs=max_embedding_inputs)
        self._max_input_bytes = max_input_bytes
        self._quota = quota
        self._mixed_batches = mixed_batches

    async def plan(self, batch_id: str) -> None:
        """Validate the batch's input and let the batch start, or fail with every reason."""
        record = await self._state.batches.get(batch_id)
        if record.status is not Status.VALIDATING:
            return
        crash.point("planner.begin")
        plan = _new_plan()
        check = self._check(record.fields["endpoint"], offset=record.number("start"))
        shares = _Shares(self._catalog)
        slices: list[Slice] = []
        if record.number("size") > self._max_input_bytes:
            check.problems = [self._too_large(record)]
        else:
            try:
                slices = await self._read(record, check, plan, shares)
            except NotFoundError as error:
                file_id, why = record.fields["input_file_id"], why_unreadable(error)
                check.problems = [unreadable(file_id, tenant=record.tenant, why=why)]
        crash.point("planner.sliced")
        try:
            if check.problems:
                await self._refuse(batch_id, check)
            else:
                await self._start(record, check, plan, shares, slices)
            crash.point("planner.applied")
        except InvalidTransitionError as error:
            # Cancelled meanwhile, or planned by another: both leave nothing to do.
            log.warning("plan.late", batch_id=batch_id, status=error.status)

    def sketch(self, endpoint: str, body: bytes, *, offset: int) -> Start | None:
        """The plan of an input at hand that begins at this byte of its object.

        None where `plan` has to say what becomes of it: it is faulty, large, or for several lanes.
        """
        if len(body) > self._max_input_bytes:
            return None
        check, slicer = self._check(endpoint, offset=offset), Slicer(self._slice_limits)
        shares = _Shares(self._catalog)
        slices = shares.cut(slicer, check.feed(body)) + shares.cut(slicer, check.finish())
        slices += slicer.finish()
        if check.problems or len(shares.all) != 1 or len(slices) > _WRITE:
            return None
        shares.count(slices)
        fields, quota = self._fields(check, shares), self._quota_of(shares)
        return Start(_new_plan(), shares.all[0].lane, slices, fields, quota)

    def _check(self, endpoint: str, *, offset: int) -> InputCheck:
        return InputCheck(
            endpoint=endpoint,
            models=self._models,
            limits=self._limits,
            is_mixed=self._mixed_batches,
            offset=offset,
        )

    async def _read(
        self, record: BatchRecord, check: InputCheck, plan: str, shares: "_Shares"
    ) -> list[Slice]:
        """Stream the input once and store its slices, of which `shares` keeps count."""
        slicer, waiting = Slicer(self._slice_limits), list[Slice]()
        written: list[Slice] = []

        async def write(least: int) -> None:
            """Store what waits, while at least `least` do."""
            if check.problems:
                # The batch will be refused: nobody needs its slices.
                waiting.clear()
            while len(waiting) >= least:
                some = waiting[:_WRITE]
                await self._state.slices.plan(
                    record.id, plan, shares.slices, some, lanes=shares.lanes
                )
                shares.count(some)
                written.extend(some)
                del waiting[:_WRITE]

        async for chunk in self._chunks(record):
            # Parsing holds the event loop for too long to do it there.
            waiting += await asyncio.to_thread(
                lambda part: shares.cut(slicer, check.feed(part)), chunk
            )
            await write(_WRITE)
        waiting += shares.cut(slicer, check.finish())
        waiting += slicer.finish()
        await write(1)
        return written

    async def _chunks(self, record: BatchRecord) -> AsyncIterator[bytes]:
        key, bucket, etag = (record.fields[name] for name in ("key", "bucket", "etag"))
        version, wanted = record.fields.get("version_id"), record.fields.get("sha256")
        start, end = record.input_range
        digest = hashlib.sha256()
        if record.number("size") <= _SMALL_BYTES:
            # One call to the store instead of one for the head and one a chunk.
            body = await self._storage.get(
                key, start=start, end=end, etag=etag, bucket=bucket, version_id=version
            )
            if wanted:
                digest.update(body)
            yield body
        else:
            source = self._storage.stream(
                key, start=start, end=end, etag=etag, bucket=bucket, version_id=version
            )
            async for chunk in source:
                if wanted:
                    await asyncio.to_thread(digest.update, chunk)
                yield chunk
        if wanted and digest.hexdigest() != wanted:
            raise ChangedError(f"The object {key} has another SHA-256 than its batch was told.")

    async def _start(
        self,
        record: BatchRecord,
        check: InputCheck,
        plan: str,
        shares: "_Shares",
        slices: list[Slice],
    ) -> None:
        quota = self._quota_of(shares)
        try:
            fields = self._fields(check, shares)
            is_ours = await self._apply(record.id, plan, fields, slices, quota)
        except QueueFullError as error:
            full = shares.all[error.number]
            share, limit = check.rows, quota.requests
            if error.queue == "tokens":
                limits = (quota.tokens, *quota.more_tokens)
                share, limit = full.prompt_tokens, limits[error.number]
            check.problems = [_no_room(record, error.queue, full.model.name, limit, share)]
            await self._refuse(record.id, check)
            return
        if is_ours:
            log.info(
                "batch.planned",
                batch_id=record.id,
                lane=" ".join(shares.lanes),
                requests=check.rows,
                slices=shares.slices,
            )

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
            with suppress(NotFoundError):
                # Whoever was first found no room in the queue.
                refusal = await read_commit(self._storage, batch_id, Event.INPUT_REJECTED)
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

    async def _store(self, batch_id: str, name: str, plan: Plan) -> None:
        lanes = str(plan.fields["lane"]).split()
        for first in range(0, len(plan.slices), _WRITE):
            some = plan.slices[first : first + _WRITE]
            await self._state.slices.plan(batch_id, name, first, some, lanes=lanes)

    def _quota_of(self, shares: "_Shares") -> Quota:
        # Adapters share their model's engine, and so its queue.
        models = [share.model for share in shares.all]
        first, *others = [one.max_enqueued_tokens or self._quota.tokens for one in models]
        return Quota(self._quota.requests, first, tuple(others))

    @staticmethod
    def _fields(check: InputCheck, shares: "_Shares") -> dict[str, str | int]:
        """What INPUT_ACCEPTED writes, but for the plan's name."""
        return {
            **({"model": check.model} if check.model else {}),
            "lane": " ".join(shares.lanes),
            "total": check.rows,
            "slices_total": shares.slices,
            "queued_model": " ".join(share.model.name for share in shares.all),
            "prompt_tokens": " ".join(str(share.prompt_tokens) for share in shares.all),
            **shares.left(),
        }

    def _too_large(self, record: BatchRecord) -> BatchError:
        return BatchError(
            code="too_large",
            param="file_id",
            message=f"The batch input file {record.fields['input_file_id']} is larger than the "
            f"{self._max_input_bytes} maximum: it has {record.number('size')} bytes.",
        )

    async def _refuse(self, batch_id: str, check: InputCheck) -> None:
        problems = [problem.model_dump() for problem in check.problems]
        fields = {"errors": json.dumps(problems), "first_error": problems[0]["message"]}
        await fail(self._state, self._storage, batch_id, Event.INPUT_REJECTED, fields)
        log.info("batch.refused", batch_id=batch_id, problems=check.problem_count or len(problems))


def _new_plan() -> str:
    return secrets.token_hex(4)


def _no_room(
    record: BatchRecord, queue: QuotaKind, model: str, limit: int, share: int
) -> BatchError:
    text = queue_text(queue, tenant=record.tenant, model=model, limit=limit)
    if share > limit:
        text += f" This batch alone has {share:,}."
    return BatchError(code=queue_code(queue), message=text)


@dataclass
class _Share:
    """What a batch has for one lane."""

    number: int
    lane: str
    model: Model
    rows: int = 0
    slices: int = 0
    prompt_tokens: int = 0


class _Shares:
    """The lanes of a batch, numbered as its rows name their models: one as a rule."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._by_model: dict[str, _Share] = {}
        self.all: list[_Share] = []

    @property
    def lanes(self) -> list[str]:
        return [share.lane for share in self.all]

    @property
    def slices(self) -> int:
        return sum(share.slices for share in self.all)

    def cut(self, slicer: Slicer, rows: Iterable[Row]) -> list[Slice]:
        """The slices that end with these rows, each row in its lane's."""
        found: list[Slice] = []
        for row in rows:
            share = self._by_model.get(row.model) or self._add(row.model)
            share.rows += 1
            share.prompt_tokens += row.tokens - row.output
            found += slicer.add(row.start, row.end, row.tokens, share.number)
        return found

    def count(self, slices: Iterable[Slice]) -> None:
        """These were written."""
        for piece in slices:
            self.all[piece.lane].slices += 1

    def left(self) -> dict[str, str | int]:
        """Of several lanes, what each has to do: fields of the record."""
        shares = self.all if len(self.all) > 1 else []
        return {
            **{f"rows_left:{share.lane}": share.rows for share in shares},
            **{f"slices_left:{share.lane}": share.slices for share in shares},
        }

    def _add(self, model: str) -> _Share:
        lane = self._catalog.lane_of(model).name
        share = next((one for one in self.all if one.lane == lane), None)
        if share is None:
            share = _Share(len(self.all), lane, self._catalog.model(model))
            self.all.append(share)
        self._by_model[model] = share
        return share
