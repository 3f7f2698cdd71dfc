"""The input file of an open batch: its additions one after the other, made when the batch ends."""

from collections.abc import AsyncIterator, Mapping
from contextlib import suppress

import structlog

from dispatcher.made_inputs import made_input
from shared import crash
from shared.errors import BrokenObjectError, NotFoundError, TransientError
from shared.ledger.additions import addition_key, read_addition
from shared.ledger.file_records import write_file
from shared.retention import RESERVED_SECONDS
from shared.settings import THIRTY_DAYS
from shared.state import BatchRecord, State
from shared.storage import Storage

log = structlog.get_logger()


class OpenInputs:
    """Makes input files. Every attempt writes the same bytes, and the first one is kept."""

    def __init__(self, state: State, storage: Storage, *, file_seconds: int = THIRTY_DAYS) -> None:
        self._state = state
        self._storage = storage
        self._file_seconds = file_seconds

    async def make(self, record: BatchRecord) -> Mapping[str, str | int]:
        """Where the input of a batch that ends is: fields of its record, none if it has no file.

        An input that cannot be put together keeps no batch from ending.
        """
        if "open_model" not in record.fields or not record.number("total"):
            return {}
        file_id, key = record.fields["input_file_id"], record.fields["key"]
        reserved = await self._state.files.reserve(
            key, f"{key}.json", seconds=RESERVED_SECONDS, file_id=file_id
        )
        if reserved:
            try:
                await self._write(record, file_id, key)
            except (NotFoundError, BrokenObjectError) as error:
                await self._state.files.unreserve(key, f"{key}.json")
                log.error("batch.input_lost", batch_id=record.id, reason=str(error))  # noqa: TRY400  # the reason says it all
                return {}
        with suppress(NotFoundError):
            file = await self._state.files.get(record.tenant, file_id)
            return {"etag": file.etag, "size": file.bytes}
        return {}

    async def _write(self, record: BatchRecord, file_id: str, key: str) -> None:
        stored = await self._storage.upload(key, self._lines(record))
        file = made_input(
            record, file_id, stored, storage=self._storage, seconds=self._file_seconds
        )
        await write_file(self._storage, file)
        crash.point("open_inputs.written")
        # Its rows were let in, so its bytes are not refused.
        if not await self._state.files.keep(file):
            raise TransientError(f"{file_id} took longer than its reservation.")

    async def _lines(self, record: BatchRecord) -> AsyncIterator[bytes]:
        for number in range(record.number("additions")):
            _, lines = await read_addition(self._storage, addition_key(record.id, number))
            if lines:
                yield lines
