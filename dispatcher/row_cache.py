"""Finds the answers to a batch's rows that were given before, and remembers those of a batch.

What is remembered is where an answer stands in an output file of the same tenant; so there is no
second copy of answers, and no answer outlives its file. Whatever goes wrong here, or is gone, makes
a row run that need not have run, and nothing else.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import structlog

from dispatcher.input_chunks import input_chunks
from dispatcher.result_files import Results
from shared import ids
from shared.adapters import adapter_named
from shared.answer_keys import (
    BrokenEntryError,
    CachedAnswer,
    answer_digest,
    answer_key,
    to_cached_answer,
)
from shared.answered import place_of_body
from shared.catalog import Catalog
from shared.errors import BatchyardError, NotFoundError, TransientError
from shared.input.cached_lines import cached_line
from shared.input.request_lines import BYTE_ORDER_MARK, custom_id_of
from shared.input.rows import Row
from shared.ledger.commits import Assembled
from shared.state import BatchRecord, FileRecord, State
from shared.storage import Storage

log = structlog.get_logger()

#: Answers that stand closer than this are read together, up to so many bytes.
_GAP_BYTES, _READ_BYTES = 64 * 1024, 8 * 1024 * 1024
#: Reads at the same time.
_READS = 4
#: Entries that are written together.
_MANY = 1000
#: A longer answer is not remembered: those of a span of rows are held in memory.
_MAX_ANSWER_BYTES = 256 * 1024


class CacheLimits(NamedTuple):
    """What an operator allows: 0 seconds turn the cache off."""

    seconds: int
    rows: int


class _Request(msgspec.Struct):
    url: str
    body: msgspec.Raw
    custom_id: str | None = None


class _Found(NamedTuple):
    """The place of the answer to the row at this position."""

    position: int
    answer: CachedAnswer


class RowCache:
    """The answers that each tenant was given in batches with a cache."""

    def __init__(
        self, state: State, storage: Storage, catalog: Catalog, limits: CacheLimits
    ) -> None:
        self._state = state
        self._storage = storage
        #: By the name that a request has as its model.
        self._identities = {name: catalog.identity(name) for name in catalog.served_names()}
        self._limits = limits

    def is_wanted(self, record: BatchRecord) -> bool:
        """Whether the batch takes answers from the cache, and gives its own to it."""
        return bool(record.number("cache_seconds")) and self._limits.seconds > 0

    async def look(self, record: BatchRecord, rows: Sequence[Row]) -> list[Row]:
        """The rows; those that were answered before have the answer in place of their lines."""
        try:
            return await self._look(record, rows)
        except (TransientError, NotFoundError) as error:
            log.warning("cache.not_read", batch_id=record.id, reason=repr(error))
            return list(rows)

    async def _look(self, record: BatchRecord, rows: Sequence[Row]) -> list[Row]:
        secret = await self._state.answers.secret(record.tenant)
        keys = await asyncio.to_thread(self._keys, secret, rows)
        known = [position for position, key in enumerate(keys) if key]
        texts = await self._state.answers.look(record.tenant, [keys[one] for one in known])
        found = list(_live(zip(known, texts, strict=True), now=time.time()))
        answers = await self._read(record.tenant, found)
        return [
            _answered(row, answers[position]) if position in answers else row
            for position, row in enumerate(rows)
        ]

    def _keys(self, secret: str, rows: Sequence[Row]) -> list[str]:
        """The key of each row; empty for one that has no answer to find."""
        return [
            "" if row.bad_line is not None or row.refusal else self._key(secret, row.line)
            for row in rows
        ]

    def _key(self, secret: str, line: bytes) -> str:
        """Empty for a line that is no request of a model that there is."""
        try:
            request = msgspec.json.decode(line, type=_Request)
            body = json.loads(bytes(request.body))
            # The body names the adapter, if it is for a tenant's own, which never changes.
            own = adapter_named(body["model"])
            identity = self._identities[own.model if own else body["model"]]
            return answer_key(secret, identity, request.url, body)
        except (ValueError, KeyError, TypeError, RecursionError):
            return ""

    async def _read(self, tenant: str, found: Sequence[_Found]) -> Mapping[int, bytes]:
        """The answers by the positions of their rows, without those that are gone or damaged."""
        names = sorted({one.answer.file_id for one in found})
        files = {
            file.id: file
            for file in await self._state.files.many(names)
            if file.tenant == tenant and not file.has_expired
        }
        usable = [one for one in found if one.answer.file_id in files]
        turns, answers = asyncio.Semaphore(_READS), dict[int, bytes]()

        async def read(group: Sequence[_Found]) -> None:
            async with turns:
                answers.update(await self._read_group(files[group[0].answer.file_id], group))

        await asyncio.gather(*map(read, _together(usable)))
        return answers

    async def _read_group(self, file: FileRecord, group: Sequence[_Found]) -> Mapping[int, bytes]:
        start = min(one.answer.start for one in group)
        end = max(one.answer.end for one in group)
        try:
            text = await self._storage.get(
                file.key, start=start, end=end, etag=file.etag, bucket=file.bucket
            )
        except NotFoundError:
            return {}
        bodies = {
            one.position: text[one.answer.start - start : one.answer.end - start]
            for one in group
            if one.answer.fits(text[one.answer.start - start : one.answer.end - start])
        }
        if len(bodies) < len(group):
            log.warning("cache.answers_broken", file_id=file.id, count=len(group) - len(bodies))
        return bodies

    async def fill(self, record: BatchRecord, results: Results) -> None:
        """Remember the answers of an ending batch. Its output file is written; safe to repeat."""
        if not self.is_wanted(record) or results.output is None or "plan" not in record.fields:
            return
        try:
            count = await self._fill(record, results.output)
        except BatchyardError as error:
            log.warning("cache.not_written", batch_id=record.id, reason=repr(error))
        else:
            log.info("cache.written", batch_id=record.id, rows=count)

    async def _fill(self, record: BatchRecord, output: Assembled) -> int:
        secret = await self._state.answers.secret(record.tenant)
        seconds = min(record.number("cache_seconds"), self._limits.seconds)
        until, written, entries = int(time.time()) + seconds, 0, dict[str, str]()
        lines = self._storage.stream(output.key, etag=output.etag)
        requests, number, request = _requests(input_chunks(self._storage, record)), -1, b""
        place = 0
        async for line in _lines(lines):
            row, start = ids.row_of_result(line), place
            place += len(line) + 1
            while number < row:
                request = await anext(requests)
                number += 1
            body = place_of_body(line)
            if body is None or body[1] - body[0] > _MAX_ANSWER_BYTES:
                continue
            if key := self._key(secret, request):
                digest = answer_digest(line[slice(*body)])
                answer = CachedAnswer(
                    until, output.file_id, start + body[0], start + body[1], digest
                )
                entries[key] = answer.to_text()
            if len(entries) == _MANY:
                written += await self._add(record.tenant, entries)
                entries = {}
        return written + await self._add(record.tenant, entries)

    async def _add(self, tenant: str, entries: Mapping[str, str]) -> int:
        if await self._state.answers.count(tenant) + len(entries) > self._limits.rows:
            await self._drop_old(tenant)
        return await self._state.answers.add(
            tenant, entries, most=self._limits.rows, seconds=self._limits.seconds
        )

    async def _drop_old(self, tenant: str) -> None:
        """Forget the entries whose time is over."""
        now = time.time()
        async for some in self._state.answers.entries(tenant):
            old = [key for key, text in some.items() if _is_old(text, now)]
            await self._state.answers.drop(tenant, old)


def _is_old(text: str, now: float) -> bool:
    try:
        return to_cached_answer(text).until <= now
    except BrokenEntryError:
        return True


def _live(texts: Iterator[tuple[int, str | None]], *, now: float) -> Iterator[_Found]:
    for position, text in texts:
        if text is not None and not _is_old(text, now):
            yield _Found(position, to_cached_answer(text))


def _answered(row: Row, answer: bytes) -> Row:
    """The row with its answer; it takes no tokens, and no place in a queue."""
    line = cached_line(custom_id_of(row.line), answer)
    return msgspec.structs.replace(row, tokens=1, output=0, sequences=0, known=line)


def _together(found: Sequence[_Found]) -> Iterator[list[_Found]]:
    """Those that are read by one call each."""
    group: list[_Found] = []
    for one in sorted(found, key=lambda one: (one.answer.file_id, one.answer.start)):
        if group and (
            one.answer.file_id != group[0].answer.file_id
            or one.answer.start > group[-1].answer.end + _GAP_BYTES
            or one.answer.end > group[0].answer.start + _READ_BYTES
        ):
            yield group
            group = []
        group.append(one)
    if group:
        yield group


async def _requests(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The lines of an input that are rows, as planning counts them."""
    mark = BYTE_ORDER_MARK
    async for line in _lines(chunks):
        request, mark = line.removeprefix(mark), b""
        if request.strip():
            yield request


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The lines of a file, without their line feeds."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest
