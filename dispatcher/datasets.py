"""Renders a batch's dataset into an input: a file of the tenant's that everything else reads.

It is made once. Whoever repeats this finds the file, or makes the same bytes again.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping
from collections.abc import Set as AbstractSet
from contextlib import aclosing, suppress
from functools import partial

import structlog

from dispatcher.input_chunks import InputRefusedError, UnansweredError
from dispatcher.made_inputs import made_input
from shared import crash
from shared.dataset.dataset import Dataset, PinnedDataset
from shared.errors import (
    BrokenObjectError,
    InvalidTransitionError,
    NotFoundError,
    TransientError,
)
from shared.ledger.copies import reserve_copies
from shared.ledger.datasets import read_dataset
from shared.ledger.file_records import write_file
from shared.ledger.tables import carried_key
from shared.lifecycle import Event, Status
from shared.openai.limits import amount_code, amount_text
from shared.openai.shapes import BatchError
from shared.retention import RESERVED_SECONDS
from shared.settings import THIRTY_DAYS
from shared.state import BatchRecord, FileRecord, State
from shared.state.files import StoredBytesError
from shared.storage import Storage, Stored
from shared.submission.dataset_lines import Carry, DatasetLines, drop
from shared.tasks import end
from shared.tenant_slots import TenantSlots

log = structlog.get_logger()

#: By each model's name, the endpoints that it serves.
Models = Mapping[str, AbstractSet[str]]
#: Renderers at a time: each may take a core, for as long as its tenant's template likes.
_AT_ONCE = 4
#: How often it is looked whether a batch still wants its input, in seconds.
_LOOK_SECONDS = 2.0


class DatasetInputs:
    """Makes inputs of datasets.

    An input has at most `max_rows` requests and `max_bytes` bytes, and its file is kept for
    `file_seconds`. A tenant may have `stored_bytes` stored, unless its own settings say otherwise.
    """

    def __init__(
        self,
        state: State,
        storage: Storage,
        *,
        max_rows: int,
        max_bytes: int,
        file_seconds: int = THIRTY_DAYS,
        stored_bytes: int | None = None,
    ) -> None:
        self._state = state
        self._storage = storage
        self.max_rows = max_rows
        self._max_bytes = max_bytes
        self._file_seconds = file_seconds
        self._stored_bytes = stored_bytes
        self._slots = TenantSlots(_AT_ONCE)

    async def input_of(self, record: BatchRecord, models: Models) -> BatchRecord:
        """The batch's record, with the rendered file as its input.

        `models` are those that the tenant may use.
        Raises InputRefusedError, InvalidTransitionError for a batch that is cancelled meanwhile,
        and TransientError or UnansweredError while it cannot be read.
        """
        try:
            file = await self._state.files.get(record.tenant, record.fields["input_file_id"])
        except NotFoundError:
            async with self._slots.taken(record.tenant):
                await self._make(record, models)
            file = await self._state.files.get(record.tenant, record.fields["input_file_id"])
        place = {"bucket": file.bucket, "key": file.key, "etag": file.etag, "start": "0"}
        return BatchRecord({**record.fields, **place, "size": str(file.bytes)})

    async def _make(self, record: BatchRecord, models: Models) -> None:
        try:
            pinned = await read_dataset(self._storage, record.fields["dataset"])
        except (NotFoundError, BrokenObjectError) as error:
            text = "What the batch was created with is lost. Create the batch again."
            raise InputRefusedError([_problem("input_changed", text)]) from error
        file_id = record.fields["input_file_id"]
        key = f"files/{record.tenant}/{file_id}"
        if not await self._state.files.reserve(
            key, f"{key}.json", seconds=RESERVED_SECONDS, file_id=file_id
        ):
            # Another planner has just made it.
            return
        try:
            stored = await self._while_wanted(record.id, self._upload(record, pinned, key, models))
        except (InputRefusedError, InvalidTransitionError):
            await self._state.files.unreserve(key, f"{key}.json")
            raise
        crash.point("datasets.rendered")
        file = made_input(
            record, file_id, stored, storage=self._storage, seconds=self._file_seconds
        )
        await self._keep(file)
        crash.point("datasets.kept")
        log.info("dataset.rendered", batch_id=record.id, sources=len(pinned.sources))

    async def _while_wanted(self, batch_id: str, work: Coroutine[None, None, Stored]) -> Stored:
        """What the work gives, unless the batch is cancelled: its rows may take days.

        Raises InvalidTransitionError then.
        """
        making = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait([making], timeout=_LOOK_SECONDS))[0]:
                with suppress(TransientError):
                    status = (await self._state.batches.statuses([batch_id])).get(batch_id)
                    if status is not Status.VALIDATING:
                        raise InvalidTransitionError(batch_id, Event.INPUT_ACCEPTED, f"{status}")
            return making.result()
        finally:
            await end(making)

    async def _upload(
        self, record: BatchRecord, pinned: PinnedDataset, key: str, models: Models
    ) -> Stored:
        """Write the lines, and beside them what their rows carry along."""
        lines_of = partial(self._lines, record, pinned, models)
        if not Dataset.model_validate_json(bytes(pinned.dataset)).carry:
            return await self._storage.upload(key, lines_of())
        now = time.time()
        await reserve_copies(
            self._state, record.id, expires_at=record.number("expires_at"), now=now
        )
        chunks: asyncio.Queue[bytes | None] = asyncio.Queue(maxsize=1)

        async def lines() -> AsyncIterator[bytes]:
            async with aclosing(lines_of(carry=chunks.put)) as found:
                async for chunk in found:
                    yield chunk
            await chunks.put(None)

        async def carried() -> AsyncIterator[bytes]:
            while (chunk := await chunks.get()) is not None:
                yield chunk

        try:
            async with asyncio.TaskGroup() as uploads:
                upload = self._storage.upload(carried_key(record.id), carried())
                uploads.create_task(upload)
                stored = uploads.create_task(self._storage.upload(key, lines()))
        except ExceptionGroup as group:
            raise group.exceptions[0] from group
        return stored.result()

    async def _keep(self, file: FileRecord) -> None:
        settings = self._state.tenants.of(file.tenant)
        limit = self._stored_bytes if settings.stored_bytes is None else settings.stored_bytes
        await write_file(self._storage, file)
        try:
            is_kept = await self._state.files.keep(file, max_bytes=limit)
        except StoredBytesError as error:
            await self._storage.remove([file.key, file.record_key])
            await self._state.files.unreserve(file.key, file.record_key)
            text = amount_text(
                "stored_bytes", tenant=file.tenant, limit=limit or 0, used=error.used
            )
            raise InputRefusedError([_problem(amount_code("stored_bytes"), text)]) from error
        if not is_kept:
            raise TransientError(f"{file.id} took longer than its reservation.")

    async def _lines(
        self,
        record: BatchRecord,
        pinned: PinnedDataset,
        models: Models,
        *,
        carry: Carry = drop,
    ) -> AsyncGenerator[bytes, None]:
        """The input. Raises InputRefusedError at the end, or as soon as there is too much."""
        dataset = DatasetLines(
            self._storage,
            pinned,
            record.fields["endpoint"],
            self.max_rows,
            models=models,
            carry=carry,
        )
        size = 0
        try:
            async with aclosing(dataset.chunks()) as chunks:
                async for chunk in chunks:
                    size += len(chunk)
                    if size > self._max_bytes:
                        raise InputRefusedError([self._too_large()])
                    yield chunk
        except TransientError as error:
            await self._storage.check_reads()
            raise UnansweredError(f"S3 fails for the dataset alone. {error}") from error
        if problems := dataset.problems.listed:
            raise InputRefusedError(problems, dataset.problems.count)

    def _too_large(self) -> BatchError:
        return _problem(
            "too_large",
            f"The rendered requests have more than {self._max_bytes} bytes, the limit. Set a limit "
            "of rows, or make several batches.",
        )


def _problem(code: str, message: str) -> BatchError:
    return BatchError(code=code, param="input", message=message)
