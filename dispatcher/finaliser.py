"""Closes batches: assembles output and errors from the parts, in input order, in bounded memory.

The parts are frozen by then, so every finaliser of a batch writes the same bytes under the same
keys; whoever is killed is simply followed by another.
"""

import asyncio
import hashlib
import json
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import aclosing

import structlog

from shared import crash, ids
from shared.errors import BatchyardError, InvalidTransitionError, NotFoundError
from shared.input.request_lines import custom_id_of, split
from shared.ledger.commits import Assembled, Commit, carry_out, commit_key, keep_commit
from shared.ledger.merging import chunked, given, merged, read_lines, stretches
from shared.lifecycle import Event, Status
from shared.slices import Part, PlannedSlice, Slice
from shared.state import BatchRecord, FileRecord, State
from shared.storage import Storage

log = structlog.get_logger()

#: Parts that are fetched ahead of the writing.
_AHEAD = 4
_REASONS = {
    Status.FINALIZING: (
        "batch_expired",
        "This request could not be executed before the completion window expired.",
    ),
    Status.CANCELLING: (
        "batch_cancelled",
        "This request was not executed because the batch was cancelled.",
    ),
}


#: Code and message of rows that did not run.
Reason = tuple[str, str]
#: Where in a part the lines of one file lie.
Section = Callable[[Part], tuple[int, int]]


class IncompleteError(BatchyardError):
    """The parts do not hold every row exactly once; the batch must not be completed."""


class InputLostError(BatchyardError):
    """The object that the batch reads is gone or was replaced."""


class Finaliser:
    """Ends batches that have nothing left to run."""

    def __init__(
        self, state: State, storage: Storage, *, output_seconds: int, tag_results: bool = False
    ) -> None:
        self._state = state
        self._storage = storage
        self._output_seconds = output_seconds
        self._tag_results = tag_results

    async def finish(self, batch_id: str) -> None:
        """Bring a `finalizing` or `cancelling` batch to its end, unless slices are still claimed.

        Raises IncompleteError when a finished batch's parts do not hold every row exactly once.
        """
        record = await self._state.batches.get(batch_id)
        if record.status not in _REASONS or await self._state.claims.inflight(batch_id):
            return
        event = _event(record)
        try:
            output, error = await self._assembled(record, event)
        except InputLostError:
            # The sender's own object, which nothing holds while rows of it never ran.
            log.warning("batch.input_lost", batch_id=batch_id)
            output, error = await self._assembled(record, event, has_names=False)
        if self._tag_results:
            for file in filter(None, (output, error)):
                await self._storage.tag(file.key, {"tenant": record.tenant})
        crash.point("finaliser.assembled")
        try:
            commit = await self._commit(record, event, output, error)
            crash.point("finaliser.committed")
            is_ours = await carry_out(self._state, self._storage, commit)
            crash.point("finaliser.concluded")
        except InvalidTransitionError as late:
            # Cancelled since it was read, for one: the next round ends it as cancelled.
            log.warning("batch.finish_late", batch_id=batch_id, status=late.status)
        else:
            if is_ours:
                log.info("batch.finished", batch_id=batch_id, how=commit.event)

    async def _assembled(
        self, record: BatchRecord, event: Event, *, has_names: bool = True
    ) -> tuple[Assembled | None, Assembled | None]:
        """Output and error file of a batch that ends in this way.

        Without names, the lines of rows that never ran have a `custom_id` of null. Raises
        InputLostError where the names cannot be read, and IncompleteError.
        """
        rows = _Rows(record.number("total") if "plan" in record.fields else 0)
        if (part := await self._part_as_file(record)) is not None:
            output, error = await self._adopt(record, part, rows)
        else:
            missing = None if event is Event.OUTPUT_COMMITTED else _REASONS[record.status]
            output = await self._write(record, event, "output", self._results(record, rows))
            crash.point("finaliser.output_written")
            errors = self._errors(record, rows, missing, has_names=has_names)
            # Whoever can still read the input writes other bytes, and so to another place.
            name = "error" if has_names else "error-without-names"
            error = await self._write(record, event, "error", errors, name=name)
        rows.check(record.id)
        return output, error

    async def _part_as_file(self, record: BatchRecord) -> Part | None:
        """The batch's only part, if it holds just what its output or error file would hold."""
        if record.number("slices_total") != 1:
            return None
        pages = self._state.slices.pages(record.id, record.fields["plan"])
        [[planned]] = [page async for page in pages]
        part = planned.part
        if (
            part is None
            or part.rows < planned.slice.rows
            or (part.output_bytes and part.error_bytes)
            # Claimed again, it may have left another part behind, which has to be swept.
            or await self._state.slices.epochs(record.id) != {0: 1}
        ):
            return None
        return part

    async def _adopt(
        self, record: BatchRecord, part: Part, rows: "_Rows"
    ) -> tuple[Assembled | None, Assembled | None]:
        """The part itself, where it lies, as the output or the error file: nothing is copied."""
        body = await self._storage.get(part.key, etag=part.etag)
        rows.mark(body)
        kind = "output" if part.output_bytes else "error"
        file = Assembled(
            key=part.key,
            etag=part.etag,
            size=len(body),
            sha256=hashlib.sha256(body).hexdigest(),
            rows=part.rows,
            file_id=ids.output_file_id(record.id, kind),
        )
        return (file, None) if part.output_bytes else (None, file)

    async def _results(self, record: BatchRecord, rows: "_Rows") -> AsyncIterator[bytes]:
        async for stretch, body in self._sections(record, _output_section):
            if body is not None:
                rows.mark(body)
                yield body
                continue
            streams = [self._section_lines(one.part, _output_section) for one in stretch]
            async for chunk in _joined(streams, rows):
                yield chunk

    async def _errors(
        self, record: BatchRecord, rows: "_Rows", missing: Reason | None, *, has_names: bool
    ) -> AsyncIterator[bytes]:
        async def never_ran(
            piece: Slice, reason: Reason, *, but: AbstractSet[int] = frozenset()
        ) -> dict[int, bytes]:
            names = await self._names(record, piece) if has_names else [None] * piece.rows
            return {
                row: _error_line(record.id, row, name, reason)
                for row, name in zip(piece.row_numbers, names, strict=True)
                if row not in rows and row not in but
            }

        async for stretch, body in self._sections(record, _error_section):
            if body is not None:
                rows.mark(body)
                [planned] = stretch
                if reason := _why_missing(record, planned, missing):
                    lines = await never_ran(planned.slice, reason)
                    rows.mark(b"".join(lines.values()))
                    lines |= {ids.row_of_result(line): line + b"\n" for line in _split(body)}
                    yield b"".join(lines[row] for row in sorted(lines))
                else:
                    yield body
                continue
            streams = [self._section_lines(one.part, _error_section) for one in stretch]
            for planned in stretch:
                if reason := _why_missing(record, planned, missing):
                    # Those of its error lines, which are marked as they are written.
                    section = self._section_lines(planned.part, _error_section)
                    refused = {ids.row_of_result(line) async for line in section}
                    found = await never_ran(planned.slice, reason, but=refused)
                    streams.append(given(found.values()))
            async for chunk in _joined(streams, rows):
                yield chunk

    async def _sections(
        self, record: BatchRecord, section: Section
    ) -> AsyncIterator[tuple[list[PlannedSlice], bytes | None]]:
        """Each stretch in order: a lone slice with its section of its part, several with None.

        The section is empty where there is no part. Several are never kept whole.
        """

        async def fetch(part: Part | None) -> bytes:
            if part is None:
                return b""
            start, end = section(part)
            return await self._storage.get(part.key, start=start, end=end)

        ahead: deque[tuple[list[PlannedSlice], asyncio.Task[bytes] | None]] = deque()
        try:
            async for stretch in stretches(self._planned(record)):
                is_lone = len(stretch) == 1
                body = asyncio.create_task(fetch(stretch[0].part)) if is_lone else None
                ahead.append((stretch, body))
                if len(ahead) >= _AHEAD:
                    first, body = ahead.popleft()
                    yield first, await body if body else None
            while ahead:
                first, body = ahead.popleft()
                yield first, await body if body else None
        finally:
            for _, body in ahead:
                if body:
                    body.cancel()

    async def _planned(self, record: BatchRecord) -> AsyncIterator[PlannedSlice]:
        if plan := record.fields.get("plan"):
            async for page in self._state.slices.pages(record.id, plan):
                for planned in page:
                    yield planned

    def _section_lines(self, part: Part | None, section: Section) -> AsyncGenerator[bytes, None]:
        if part is None:
            return given(())
        return read_lines(self._storage, part.key, *section(part))

    async def _names(self, record: BatchRecord, piece: Slice) -> list[str | None]:
        """The `custom_id` of each row of the slice. Raises InputLostError."""
        try:
            source = await self._storage.get(
                record.fields["key"],
                start=piece.start,
                end=piece.end,
                etag=record.fields["etag"],
                bucket=record.fields["bucket"],
                version_id=record.fields.get("version_id"),
            )
        except NotFoundError as error:
            raise InputLostError(f"Batch {record.id}: its input cannot be read.") from error
        return [custom_id_of(line) for line in piece.pick(split(source))]

    async def _write(
        self,
        record: BatchRecord,
        event: Event,
        kind: str,
        chunks: AsyncIterator[bytes],
        *,
        name: str | None = None,
    ) -> Assembled | None:
        """Stream the chunks into the batch's output or error object; None when there are none."""
        digest, lines = hashlib.sha256(), 0
        first = b""
        async for chunk in chunks:
            if chunk:
                first = chunk
                break
        if not first:
            return None

        async def counted() -> AsyncIterator[bytes]:
            nonlocal lines
            lines += first.count(b"\n")
            digest.update(first)
            yield first
            async for chunk in chunks:
                lines += chunk.count(b"\n")
                digest.update(chunk)
                yield chunk

        # One frozen while the batch expired must not overwrite how the batch was cancelled since.
        key = f"batches/{record.id}/{event}/{name or kind}.jsonl"
        stored = await self._storage.upload(key, counted())
        return Assembled(
            key=stored.key,
            etag=stored.etag,
            size=stored.size,
            sha256=digest.hexdigest(),
            rows=lines,
            file_id=ids.output_file_id(record.id, kind),
        )

    async def _commit(
        self,
        before: BatchRecord,
        event: Event,
        output: Assembled | None,
        error: Assembled | None,
    ) -> Commit:
        """Create the commit object, or read the one that was first.

        Raises InvalidTransitionError when the batch is no longer what it was `before`, and
        TransientError while Redis is made again: its record may be of another time.
        """
        record, pin = await self._state.batches.pinned(before.id)
        await self._state.restore.raise_if_under_way()
        if (record.status, record.fields.get("plan")) != (before.status, before.fields.get("plan")):
            raise InvalidTransitionError(record.id, event, record.status)
        fields: dict[str, str | int] = {
            "completed": output.rows if output else 0,
            "failed": error.rows if error else 0,
        }
        if record.number("given_up"):
            # They stand among the failed ones now.
            fields["given_up"] = 0
        files = []
        finished_at = record.number(f"{record.status}_at")
        for kind, written in (("output", output), ("error", error)):
            if written is None:
                continue
            files.append(self._file(record, kind, written, finished_at).to_fields())
            fields[f"{kind}_file_id"] = written.file_id
            fields[f"{kind}_object"] = json.dumps(
                {
                    "bucket": self._storage.bucket,
                    "key": written.key,
                    "etag": written.etag,
                    "size": written.size,
                    "sha256": written.sha256,
                }
            )
        parts = f"batches/{record.id}/parts/"
        is_adopted = any(
            written is not None and written.key.startswith(parts) for written in (output, error)
        )
        commit = Commit(
            batch_id=record.id,
            event=event,
            record=record.fields,
            fields=fields,
            output=output,
            error=error,
            files=files,
            # Also where no part was committed: one may have been written by a job that then died.
            garbage=parts if "plan" in record.fields and not is_adopted else None,
            garbage_later=list(_overtaken(record)),
            **pin._asdict(),
        )
        return await keep_commit(self._storage, commit)

    def _file(
        self, record: BatchRecord, kind: str, written: Assembled, created_at: int
    ) -> FileRecord:
        seconds = record.number("output_seconds") or self._output_seconds
        return FileRecord(
            id=written.file_id,
            tenant=record.tenant,
            bytes=written.size,
            created_at=created_at,
            expires_at=created_at + seconds,
            filename=f"{record.id}_{kind}.jsonl",
            purpose="batch_output",
            bucket=self._storage.bucket,
            key=written.key,
            etag=written.etag,
        )


class _Rows:
    """Which rows have a line, and whether any has two."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._seen = bytearray(total)
        self._doubled: int | None = None

    def __contains__(self, row: int) -> bool:
        return bool(self._seen[row])

    def add(self, row: int) -> None:
        if row >= self._total or self._seen[row]:
            self._doubled = row
        else:
            self._seen[row] = 1

    def mark(self, lines: bytes) -> None:
        for line in lines.split(b"\n"):
            if line:
                self.add(ids.row_of_result(line))

    def check(self, batch_id: str) -> None:
        """Raise IncompleteError unless every row was added exactly once."""
        if self._doubled is not None:
            raise IncompleteError(f"Batch {batch_id}: row {self._doubled} has two results.")
        if (row := self._seen.find(0)) >= 0:
            raise IncompleteError(f"Batch {batch_id}: row {row} has no result.")


def _output_section(part: Part) -> tuple[int, int]:
    return 0, part.output_bytes


def _error_section(part: Part) -> tuple[int, int]:
    return part.output_bytes, part.output_bytes + part.error_bytes


def _why_missing(
    record: BatchRecord, planned: PlannedSlice, missing: Reason | None
) -> Reason | None:
    """Why rows of the slice did not run; None if all did, or if they should have."""
    part = planned.part
    if part is not None and part.rows == planned.slice.rows:
        return None
    failure = record.fields.get(f"lane_failed:{record.lanes[planned.slice.lane]}")
    return ("engine_failed", failure) if failure is not None else missing


async def _joined(
    streams: list[AsyncGenerator[bytes, None]], rows: "_Rows"
) -> AsyncGenerator[bytes, None]:
    """The lines of all streams in the order of their rows, in chunks."""
    async with aclosing(chunked(merged(streams))) as chunks:
        async for lines in chunks:
            chunk = b"".join(lines)
            rows.mark(chunk)
            yield chunk


def _overtaken(record: BatchRecord) -> Sequence[str]:
    """What another finaliser may have written for the end that a cancellation came before."""
    if record.status is not Status.CANCELLING or "finalizing_at" not in record.fields:
        return ()
    event = _end_of_running(record)
    return f"batches/{record.id}/{event}/", commit_key(record.id, event)


def _error_line(batch_id: str, row: int, custom_id: str | None, reason: Reason) -> bytes:
    code, message = reason
    result = {
        "id": ids.result_id(batch_id, row),
        "custom_id": custom_id,
        "response": None,
        "error": {"code": code, "message": message},
    }
    return json.dumps(result, separators=(",", ":")).encode() + b"\n"


def _split(body: bytes) -> list[bytes]:
    return [line for line in body.split(b"\n") if line]


def _event(record: BatchRecord) -> Event:
    if record.status is Status.CANCELLING:
        return Event.CANCEL_COMMITTED
    return _end_of_running(record)


def _end_of_running(record: BatchRecord) -> Event:
    if record.number("window_closed"):
        return Event.EXPIRY_COMMITTED
    return Event.OUTPUT_COMMITTED
