"""Removes claims of dead jobs, expired files and uploads, and unreferenced objects."""

from contextlib import suppress

import structlog

from dispatcher.forgetting import forget_ended, forget_pipelines
from dispatcher.leaving import let_leave
from shared import crash
from shared.errors import NotFoundError
from shared.ledger.packs import is_pack, save_manifests
from shared.settings import NINETY_DAYS, TEN_MINUTES
from shared.state import State
from shared.storage import PROBES, READABLE, Storage

log = structlog.get_logger()

#: Longer than any upload and its completion last.
_ABANDONED_SECONDS = 86_400.0


class Reaper:
    """The dispatcher's periodic duties. Only the leader runs one."""

    def __init__(
        self,
        state: State,
        storage: Storage,
        *,
        batch_seconds: int = NINETY_DAYS,
        ended_seconds: float = TEN_MINUTES,
    ) -> None:
        """Batches are known for `batch_seconds`, and in Redis for `ended_seconds` of them."""
        self._state = state
        self._storage = storage
        self._batch_seconds = batch_seconds
        self._ended_seconds = ended_seconds

    async def release_claims(self) -> None:
        """Give back slices whose lane job no longer renews its claims."""
        for lane in await self._state.lanes.names():
            if reaped := await self._state.claims.reap(lane):
                log.warning("claims.ran_out", lane=lane, slices=reaped)

    async def expire(self) -> None:
        """Expire uploads that were not completed in time, and delete files that have expired.

        A file's object stays while a live batch reads it.
        """
        while overdue := await self._state.uploads.overdue():
            for upload_id in overdue:
                await self._state.uploads.expire(upload_id)
                log.info("upload.expired", upload_id=upload_id)
        while files := await self._state.files.expired():
            # Before the records in Redis: a rebuild brings back whatever has a record in S3.
            await self._storage.remove(file.record_key for file in files if file.has_record)
            crash.point("reaper.records_removed")
            for file in files:
                # Its owner may have deleted it already.
                with suppress(NotFoundError):
                    await self._state.files.delete(file.tenant, file.id)
            log.info("files.expired", files=len(files))

    async def forget(self) -> None:
        """Forget batches and pipelines that ended long ago."""
        await forget_ended(self._state, self._storage, seconds=self._batch_seconds)
        await forget_pipelines(self._state, self._storage, seconds=self._batch_seconds)

    async def let_leave(self) -> None:
        """Let batches that ended minutes ago leave Redis for S3."""
        await let_leave(self._state, self._storage, seconds=self._ended_seconds)

    async def find_ended(self) -> None:
        """Find ended batches that are not to leave, as those of an older version."""
        if found := await self._state.away.find():
            log.info("batches.found_ended", batches=found)

    async def sweep(self) -> None:
        """Delete objects and prefixes that nothing refers to any more."""
        while garbage := await self._state.files.garbage():
            for key in filter(is_pack, garbage):
                await save_manifests(self._storage, key)
            doomed = [key for key in garbage if not key.endswith("/")]
            for prefix in garbage:
                if prefix.endswith("/"):
                    # A second slash at the end marks a second sweep of the same prefix.
                    doomed += await self._storage.keys(f"{prefix.rstrip('/')}/")
            await self._storage.remove(doomed)
            crash.point("reaper.removed")
            await self._state.files.swept(garbage)
            crash.point("reaper.swept")

    async def sweep_abandoned(self, *, older_than_seconds: float = _ABANDONED_SECONDS) -> None:
        """Delete objects that dead processes left in S3 and that Redis does not know."""
        aborted = await self._storage.abort_older_than(older_than_seconds)
        parts = await self._storage.keys_older_than(older_than_seconds, "uploads/")
        old = await self._storage.keys_older_than(older_than_seconds, PROBES)
        probes = [key for key in old if key != READABLE]
        await self._storage.remove([*parts, *probes])
        if aborted or parts or probes:
            log.info(
                "storage.swept", multipart_uploads=aborted, parts=len(parts), probes=len(probes)
            )
