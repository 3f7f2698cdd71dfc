"""Adds rows to open batches, and closes them. Any number of processes may do so at once.

An addition is created in S3 first, under the next number, and then taken into Redis. Whoever finds
the number taken brings Redis up to date with that object, and begins again: so all agree who was
first with a name, whether it came before the end, and where its rows are.
"""

import asyncio
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple, Protocol
from weakref import WeakValueDictionary

import msgspec
import structlog

from shared import crash
from shared.catalog import Catalog
from shared.checksums import checksum
from shared.errors import (
    BatchyardError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    TransientError,
)
from shared.input.request_lines import custom_id_of, split
from shared.input.rows import Row
from shared.input.validation import InputCheck, Limits
from shared.input_places import InputPlaces
from shared.ledger.additions import (
    Addition,
    addition_key,
    addition_name,
    answers_name,
    create_addition,
    read_addition,
)
from shared.ledger.copies import copy_key
from shared.lifecycle import Status
from shared.openai.endpoints import ENDPOINTS
from shared.openai.shapes import BatchError
from shared.slices import Copy, Slice
from shared.slicing import SliceLimits, Slicer
from shared.state import BatchRecord, State
from shared.state.additions import Extension, line_digest, name_digest
from shared.storage import Storage
from shared.submission.adapters import adapters_of
from shared.submission.admission import NewBatchQuota, Reached
from shared.tenant_rules import TenantRules

log = structlog.get_logger()

#: What one addition may bring. It is held in memory, and its names are one step of Redis.
MAX_ADDITION_BYTES, MAX_ADDITION_ROWS = 4 * 1024 * 1024, 10_000
#: Rows that an error names.
_MAX_NAMED = 10


class Added(NamedTuple):
    """What an addition has done: rows that are new, and rows that the batch had already."""

    batch: BatchRecord
    added: int
    repeated: int


class Answered(NamedTuple):
    """What running batches hold in their tenant's queue although it was answered."""

    requests: int = 0
    #: Prompt tokens by model.
    tokens: Mapping[str, int] = {}


_NOTHING = Answered()


class RoomError(BatchyardError):
    """The rows would exceed what the tenant may have."""

    def __init__(self, reached: Reached) -> None:
        super().__init__("The tenant has no room for these rows.")
        self.reached = reached


class NameConflictError(ConflictError):
    """The batch has another row of that name."""


class FullError(InvalidInputError):
    """With these rows the batch would have more than a batch may."""


class _New(NamedTuple):
    """A row of an addition, with the digests of its name and line."""

    row: Row
    name: str
    digest: str


class KnownAnswers(Protocol):
    """Knows what a tenant was answered before."""

    def is_wanted(self, record: BatchRecord) -> bool:
        """Whether the batch is given such answers."""

    async def look(self, record: BatchRecord, rows: Sequence[Row]) -> list[Row]:
        """The rows; those that were answered have the answer as `known`."""


class Additions:
    """Adds rows to open batches."""

    def __init__(
        self,
        state: State,
        storage: Storage,
        catalog: Catalog,
        *,
        limits: Limits,
        slice_limits: SliceLimits,
        max_input_bytes: int,
        quota: NewBatchQuota,
        places: InputPlaces | None = None,
        answers: KnownAnswers | None = None,
    ) -> None:
        """`limits` and `max_input_bytes` are those of a whole batch."""
        self._state = state
        self._storage = storage
        self._rules = TenantRules(catalog, places)
        self._limits = limits
        self._slice_limits = slice_limits
        self._max_input_bytes = max_input_bytes
        self._quota = quota
        self._answers = answers
        #: Additions to one batch go one after the other, instead of racing for numbers.
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def add(
        self,
        batch: BatchRecord,
        body: bytes,
        *,
        dry_run: bool = False,
        answered: Answered = _NOTHING,
    ) -> Added:
        """Add the rows of `body`: lines, or one JSON array. With `dry_run`, only say what would be.

        What is `answered` of the tenant's queue leaves its room to these rows.

        A row that the batch has already is not added again: if it has all of them, it need not be
        open any more, as long as Redis knows their names. Raises InvalidInputError for rows that
        are none, FullError, ConflictError if the batch takes none, NameConflictError if it has
        another row of that name, RoomError, and TransientError.
        """
        _require_made_open(batch)
        await self._state.tenants.look()
        adapters = await adapters_of(self._state, self._rules, batch.tenant)
        rows = await asyncio.to_thread(self._rows, batch, body, adapters)
        turn = self._turns.setdefault(batch.id, asyncio.Lock())
        async with turn:
            while True:
                record, known = await self._state.additions.look(
                    batch.id, [one.name for one in rows]
                )
                if [one.digest for one in rows] == known:
                    return Added(record, 0, len(rows))
                require_open(record)
                new = _new_of(rows, known)
                repeated = len(rows) - len(new)
                new = await self._with_answers(record, new)
                await self._require_room(record, new, answered)
                if dry_run:
                    return Added(record, len(new), repeated)
                addition, lines = await self._addition(record, new)
                if await _bring(self._state, self._storage, record.id, addition, lines):
                    record = await self._state.batches.get(record.id)
                    return Added(record, len(new), repeated)
                await catch_up(self._state, self._storage, record)

    async def refused(self, batch: BatchRecord, lines: Sequence[bytes]) -> dict[int, BatchError]:
        """Which of these lines the batch would not take, by their places from 0, and why."""
        await self._state.tenants.look()
        adapters = await adapters_of(self._state, self._rules, batch.tenant)
        return await asyncio.to_thread(self._refused, batch, lines, adapters)

    def _refused(
        self, batch: BatchRecord, lines: Sequence[bytes], adapters: frozenset[str]
    ) -> dict[int, BatchError]:
        check = self._check(batch, adapters, rows=len(lines), problems=len(lines))
        check.feed(b"".join(line + b"\n" for line in lines))
        found: dict[int, BatchError] = {}
        for one in check.problems:
            if one.line is not None:
                found.setdefault(one.line - 1, one)
        return found

    def _check(
        self, batch: BatchRecord, adapters: frozenset[str], *, rows: int, problems: int
    ) -> InputCheck:
        settings = self._state.tenants.of(batch.tenant)
        model, endpoint = batch.fields["open_model"], batch.fields["endpoint"]
        usable = self._rules.endpoints(settings, adapters)
        return InputCheck(
            endpoint=endpoint,
            models={model: usable[model]} if model in usable else {},
            limits=self._limits.of_tenant(settings.custom_id_characters)._replace(
                rows=rows, problems=problems
            ),
            rules=self._rules.of(batch.tenant, adapters),
        )

    def _rows(self, batch: BatchRecord, body: bytes, adapters: frozenset[str]) -> list[_New]:
        """The rows of a body. Raises InvalidInputError."""
        check = self._check(batch, adapters, rows=MAX_ADDITION_ROWS, problems=_MAX_NAMED)
        found = check.feed(b"".join(line + b"\n" for line in _lines_of(body))) + check.finish()
        if problems := check.problems:
            said = "; ".join(
                f"line {one.line}: {one.message}" if one.line else one.message for one in problems
            )
            first = problems[0]
            raise InvalidInputError(said, param=first.param, code=first.code)
        return [
            _New(row, name_digest(custom_id_of(row.line) or ""), line_digest(row.line))
            for row in found
        ]

    async def _require_room(
        self, record: BatchRecord, new: Sequence[_New], answered: Answered
    ) -> None:
        """Raise FullError or RoomError if the batch may not have so many more."""
        _require(record.number("total") + len(new), self._limits.rows, "requests", "too_many_tasks")
        size = sum(len(one.row.line) + 1 for one in new)
        _require(record.number("size") + size, self._max_input_bytes, "bytes", "too_large")
        sequences = sum(one.row.sequences for one in new)
        if ENDPOINTS[record.fields["endpoint"]].counts_inputs:
            inputs = record.number("queued_requests") + sequences
            _require(inputs, self._limits.embedding_inputs, "inputs", "too_many_inputs")
        settings = self._state.tenants.of(record.tenant)
        held = (await self._state.tenants.held([record.tenant]))[record.tenant]
        most = settings.enqueued_requests or self._quota.requests
        requests = held.requests - answered.requests
        if most and requests + sequences > most:
            raise RoomError(Reached("requests", None, most, requests))
        stored = settings.stored_bytes or self._quota.stored_bytes
        # Those of this batch become a file when it ends.
        if stored and held.stored_bytes + record.number("size") + size > stored:
            raise RoomError(Reached("stored_bytes", None, stored, held.stored_bytes))
        model = record.fields["queued_model"]
        limits = self._quota.token_limits(record.fields["endpoint"], settings)
        used = held.tokens.get(model, 0) - answered.tokens.get(model, 0)
        prompt_tokens = _prompt_tokens(new)
        if (most := limits.get(model, 0)) and used + prompt_tokens > most:
            raise RoomError(Reached("tokens", model, most, used))

    async def _with_answers(self, record: BatchRecord, new: list[_New]) -> list[_New]:
        """The rows; those that were answered before have the answer as `known`."""
        if self._answers is None or not self._answers.is_wanted(record):
            return new
        found = await self._answers.look(record, [one.row for one in new])
        return [one._replace(row=row) for one, row in zip(new, found, strict=True)]

    async def _addition(self, record: BatchRecord, new: Sequence[_New]) -> tuple[Addition, bytes]:
        """The next addition to the batch, and its lines. A copy has the answers that are known."""
        number, start = record.number("additions"), record.number("size")
        lines = b"".join(one.row.line + b"\n" for one in new)
        slices = list(self._cut(record.number("total"), addition_name(number), start, new, lines))
        if any(one.row.known for one in new):
            name = answers_name(number, secrets.token_hex(4))
            slices, copy = _with_known_rows(slices, new, name)
            # Nobody reads it before the addition names it.
            await self._storage.put(copy_key(record.id, name), copy)
        addition = Addition(
            number=number,
            start=start,
            size=len(lines),
            slices=slices,
            prompt_tokens=_prompt_tokens(new),
            sequences=sum(one.row.sequences for one in new),
        )
        return addition, lines

    def _cut(
        self, first_row: int, name: str, start: int, new: Sequence[_New], lines: bytes
    ) -> Iterator[Slice]:
        # They are few, and any engine may run them.
        slicer, place = Slicer(self._slice_limits.of_engine(seats=0)), 0
        cut: list[Slice] = []
        for one in new:
            end = place + len(one.row.line) + 1
            cut += slicer.add(place, end, one.row.tokens)
            place = end
        for slice_ in [*cut, *slicer.finish()]:
            here = (slice_.start, slice_.end)
            yield slice_._replace(
                start=start + slice_.start,
                end=start + slice_.end,
                first_row=first_row + slice_.first_row,
                copy=Copy(name, *here, checksum(lines[slice(*here)])),
            )


def _with_known_rows(
    slices: Sequence[Slice], new: Sequence[_New], name: str
) -> tuple[list[Slice], bytes]:
    """The slices, and the copy of this name that they read: answers stand in place of lines.

    Slices without an answer need no copy.
    """
    made, bodies, first, place = list[Slice](), list[bytes](), 0, 0
    for slice_ in slices:
        rows = [one.row for one in new[first : first + slice_.rows]]
        first += slice_.rows
        if not any(row.known for row in rows):
            made.append(slice_)
            continue
        body = b"".join(row.known or row.line + b"\n" for row in rows)
        copy = Copy(name, place, place + len(body), checksum(body), slice_.copy)
        made.append(slice_._replace(copy=copy))
        bodies.append(body)
        place += len(body)
    return made, b"".join(bodies)


async def close(state: State, storage: Storage, batch_id: str) -> BatchRecord:
    """Let the batch take no more rows. Safe to repeat.

    Raises ConflictError for a batch that takes none and was not closed, NotFoundError, and
    TransientError.
    """
    while True:
        record, _ = await state.additions.look(batch_id)
        if "closed" in record.fields:
            return record
        require_open(record)
        last = Addition(
            number=record.number("additions"), start=record.number("size"), is_last=True
        )
        if not await _bring(state, storage, batch_id, last, b""):
            await catch_up(state, storage, record)


async def _bring(
    state: State, storage: Storage, batch_id: str, addition: Addition, lines: bytes
) -> bool:
    """Create the addition, and take it. Returns False if there is one with its number already."""
    if not await create_addition(storage, batch_id, addition, lines):
        return False
    crash.point("additions.created")
    await take(state, batch_id, addition, lines)
    crash.point("additions.taken")
    return True


async def catch_up(state: State, storage: Storage, record: BatchRecord) -> bool:
    """Take the next addition that S3 has and Redis has not. Returns False if there is none.

    Raises as `take` does, and BrokenObjectError.
    """
    try:
        addition = await read_addition(storage, addition_key(record.id, record.number("additions")))
    except NotFoundError:
        return False
    await take(state, record.id, *addition)
    return True


async def catch_up_all(state: State, storage: Storage, batch_id: str) -> None:
    """Take all that S3 has and Redis has not: there may be some if the plan was lost.

    Raises BrokenObjectError and TransientError.
    """
    with suppress(ConflictError):
        while await catch_up(state, storage, await state.batches.get(batch_id)):
            pass


async def take(state: State, batch_id: str, addition: Addition, lines: bytes) -> None:
    """Take an addition that is in S3 into Redis. Safe to repeat.

    Raises ConflictError if the batch takes no rows by now, NotFoundError, and TransientError.
    """
    outcome = await state.additions.take(batch_id, extension_of(addition), names_of(lines))
    if outcome == "early":
        raise TransientError(f"Redis has lost additions to batch {batch_id}, which S3 has.")
    if outcome != "ok":
        raise not_open(Status(outcome))
    log.info("batch.extended", batch_id=batch_id, number=addition.number, requests=addition.rows)


def extension_of(addition: Addition) -> Extension:
    """The addition as Redis counts it."""
    return Extension(
        addition.number,
        addition.slices,
        addition.size,
        addition.prompt_tokens,
        addition.sequences,
        addition.is_last,
    )


def names_of(lines: bytes) -> Mapping[str, str]:
    """The digest of each row's name, with that of its line."""
    return {name_digest(custom_id_of(line) or ""): line_digest(line) for line in split(lines)}


def require_open(record: BatchRecord) -> None:
    """Raise ConflictError unless the batch takes rows, and TransientError before it does."""
    _require_made_open(record)
    if "closed" in record.fields:
        raise ConflictError(f"Batch {record.id} has been closed, and takes no more requests.")
    if not record.takes_rows:
        raise not_open(record.status)
    if record.status is Status.VALIDATING:
        # Whoever created it has died, and the dispatcher starts it.
        raise TransientError(f"Batch {record.id} is about to take requests.")


def require_no_pipeline(batch: BatchRecord) -> None:
    """Raise ConflictError for a batch that takes rows of a pipeline only."""
    if pipeline := batch.fields.get("pipeline"):
        raise ConflictError(
            f"Batch {batch.id} is a stage of pipeline {pipeline}, which alone adds requests to it "
            "and closes it."
        )


def _require_made_open(record: BatchRecord) -> None:
    if "open_model" not in record.fields:
        raise ConflictError(
            f"Batch {record.id} was not created open: it has the requests of its input."
        )


def not_open(status: Status) -> ConflictError:
    """The error for a batch whose status does not allow more rows."""
    return ConflictError(f"Cannot add requests to a batch with status '{status}'.")


def _new_of(rows: Sequence[_New], known: Sequence[str | None]) -> list[_New]:
    """The rows that the batch has not. Raises NameConflictError for a known name."""
    others = [
        one.row.number
        for one, line in zip(rows, known, strict=True)
        if line is not None and line != one.digest
    ]
    if others:
        named = ", ".join(map(str, others[:_MAX_NAMED]))
        raise NameConflictError(
            f"The batch has other requests with the custom_id of line {named}"
            f"{' and more' if len(others) > _MAX_NAMED else ''}. Nothing was added."
        )
    return [one for one, line in zip(rows, known, strict=True) if line is None]


def _lines_of(body: bytes) -> list[bytes]:
    """One line for each request: of lines, or of a JSON array. Raises InvalidInputError."""
    if not body.lstrip().startswith(b"["):
        return body.removesuffix(b"\n").split(b"\n")
    try:
        items = msgspec.json.decode(body, type=list[msgspec.Raw])
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidInputError(
            "The body is no JSON array of requests.", code="invalid_json"
        ) from error
    # Between the tokens of JSON only: inside of a string, it would be escaped.
    return [bytes(item).replace(b"\r", b" ").replace(b"\n", b" ") for item in items]


def _prompt_tokens(new: Sequence[_New]) -> int:
    return sum(one.row.tokens - one.row.output for one in new)


def _require(count: int, most: int, what: str, code: str) -> None:
    if count > most:
        raise FullError(
            f"The batch would have {count} {what} with these; the limit is {most}.", code=code
        )
