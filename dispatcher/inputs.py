"""Locates the input of a batch from the bus, and checks that its tenant may read it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from weakref import WeakValueDictionary

from shared import ids
from shared.bus.messages import FileInput, Reason, RejectedError, S3Input, Submission
from shared.dataset.dataset import Dataset
from shared.errors import BatchyardError, InvalidInputError, NotFoundError, TransientError
from shared.input_places import InputPlaces, is_in
from shared.settings import THIRTY_DAYS
from shared.state import State
from shared.storage import ForbiddenError, Storage, Stored
from shared.submission.datasets import Datasets
from shared.submission.tables import table_fields

#: Lookups in S3 for one tenant at once: its slow objects must not hold up other tenants.
_LOOKUPS_PER_TENANT = 8
#: Seconds that a message may wait for a lookup.
_TURN_SECONDS = 0.2
#: Seconds between the lookups of an object that S3 fails to answer for.
_PAUSES = (0.1, 0.3, 1.0, 2.0, 4.0)


class CrowdedError(BatchyardError):
    """The tenant has too many lookups under way; other tenants go first."""


class Inputs:
    """Finds inputs; what it returns are fields of a manifest.

    The file records of inputs last `file_seconds`. An object that S3 fails for is looked up again
    after each of `pauses`.
    """

    def __init__(
        self,
        state: State,
        storage: Storage,
        *,
        places: InputPlaces,
        max_bytes: int,
        file_seconds: int = THIRTY_DAYS,
        pauses: Sequence[float] = _PAUSES,
        table_places: InputPlaces | None = None,
    ) -> None:
        self._state = state
        self._storage = storage
        self._places = places
        self._max_bytes = max_bytes
        self._file_seconds = file_seconds
        self._pauses = pauses
        self._table_places = table_places
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    def table(self, tenant: str, submission: Submission) -> dict[str, Any]:
        """The table that the batch asks for. Raises RejectedError."""
        try:
            return table_fields(
                tenant,
                submission.output,
                submission.input,
                endpoint=submission.endpoint,
                places=self._table_places,
            )
        except InvalidInputError as error:
            raise RejectedError(
                [Reason("schema_invalid", str(error), error.param or "")]
            ) from error

    def unplaced(self) -> dict[str, Any]:
        """The fields of an input that is not in a pack yet."""
        unknown = {"bucket": "", "key": "", "etag": "", "size": 0}
        return {**unknown, "is_foreign": True, "file_seconds": self._file_seconds}

    async def find_object(self, tenant: str, batch_id: str, wanted: S3Input) -> dict[str, Any]:
        """An object that exists.

        Raises RejectedError if the tenant may not have it or S3 fails for this object alone,
        TransientError while S3 is away, and CrowdedError.
        """
        self._require_readable(tenant, wanted)
        self._require_small(wanted.size, "input.size")
        async with self._turn(tenant):
            found = await self._look_up(wanted)
        if found.etag != wanted.etag.strip('"') or found.size != wanted.size:
            raise _refused(
                "input_changed",
                "input.etag",
                f"the object has the ETag '{found.etag}' and {found.size} bytes, which is not "
                "what the message says. Correct the message or the object.",
            )
        return {
            "input_file_id": ids.input_file_id(batch_id),
            "bucket": wanted.bucket,
            "key": wanted.key,
            "etag": found.etag,
            "size": found.size,
            "version_id": wanted.version_id or "",
            "sha256": wanted.sha256 or "",
            "is_foreign": True,
            "file_seconds": self._file_seconds,
        }

    @asynccontextmanager
    async def _turn(self, tenant: str) -> AsyncIterator[None]:
        turns = self._turns.setdefault(tenant, asyncio.Semaphore(_LOOKUPS_PER_TENANT))
        try:
            await asyncio.wait_for(turns.acquire(), _TURN_SECONDS)
        except TimeoutError as error:
            raise CrowdedError(f"{tenant} has too many lookups under way.") from error
        try:
            yield
        finally:
            turns.release()

    async def _look_up(self, wanted: S3Input) -> Stored:
        for pause in (*self._pauses, None):
            try:
                return await self._storage.stat(
                    wanted.key, bucket=wanted.bucket, version_id=wanted.version_id
                )
            except ForbiddenError as error:
                # S3 may refuse our login altogether, which is not the message's fault.
                await self._storage.check_reads()
                text = "S3 does not let Batchyard read that object."
                raise _refused("input_not_found", "input.key", text) from error
            except NotFoundError as error:
                raise _refused("input_not_found", "input.key", str(error)) from error
            except TransientError:
                # In an outage this raises as well, and the message waits until it ends.
                await self._storage.check_reads()
            if pause is not None:
                await asyncio.sleep(pause)
        raise _refused(
            "input_unavailable",
            "input.key",
            "S3 fails to answer for that object, though it answers for others. Check the name and "
            "the version, or send the message again later.",
        )

    async def find_dataset(self, tenant: str, batch_id: str, wanted: Dataset) -> dict[str, Any]:
        """A dataset, pinned as it is now.

        Raises RejectedError if it cannot be one, TransientError while S3 is away, and CrowdedError.
        """
        datasets = Datasets(self._state, self._storage, self._places)
        try:
            async with self._turn(tenant):
                pinned = await datasets.pinned(tenant, wanted)
        except InvalidInputError as error:
            raise RejectedError(
                [Reason("schema_invalid", str(error), error.param or "")]
            ) from error
        return await datasets.kept(batch_id, pinned)

    async def find_file(self, tenant: str, wanted: FileInput) -> dict[str, Any]:
        """An uploaded file that exists. Raises RejectedError if the tenant may not have it."""
        file_id = wanted.file_id
        try:
            file = await self._state.files.get(tenant, file_id)
        except NotFoundError as error:
            raise _refused("input_not_found", "input.file_id", str(error)) from error
        if file.has_expired:
            raise _refused("input_not_found", "input.file_id", f"No such File object: {file_id}")
        if file.purpose != "batch":
            raise _refused(
                "schema_invalid",
                "input.file_id",
                f"the file's purpose is '{file.purpose}', not 'batch'.",
            )
        self._require_small(file.bytes, "input.file_id")
        return {
            "input_file_id": file.id,
            "bucket": file.bucket,
            "key": file.key,
            "etag": file.etag,
            "size": file.bytes,
            "start": file.start,
        }

    def _require_readable(self, tenant: str, wanted: S3Input) -> None:
        places = self._places.of(tenant)
        if not is_in(wanted.bucket, wanted.key, places):
            raise _refused(
                "schema_invalid",
                "input.key",
                f"only objects under {', '.join(places)} may be read.",
            )

    def _require_small(self, size: int, param: str) -> None:
        if size > self._max_bytes:
            raise _refused(
                "too_large",
                param,
                f"the input has {size} bytes; at most {self._max_bytes} are allowed.",
            )


def _refused(code: str, param: str, text: str) -> RejectedError:
    return RejectedError([Reason(code, f"{param}: {text}", param)])
