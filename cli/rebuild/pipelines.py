"""Pipelines in Redis, made again from what S3 has of them."""

from typing import TypeVar

from cli.rebuild.damage import Damage
from cli.rebuild.report import Report
from shared.errors import BrokenObjectError, NotFoundError
from shared.ledger.pipelines import (
    PIPELINES,
    Closing,
    Ended,
    StoredPipeline,
    closing_fields,
    closing_key,
    edges_folder,
    ended_fields,
    ended_key,
    pipeline_key,
    record_fields,
)
from shared.ledger.records import answered, read_record
from shared.retention import DAY_SECONDS
from shared.state import State
from shared.storage import Storage

T = TypeVar("T")


class PipelineRestore:
    """Restores the records of pipelines. Their batches are restored as any others."""

    def __init__(self, state: State, storage: Storage, report: Report, damage: Damage) -> None:
        self._state = state
        self._storage = storage
        self._report = report
        self._damage = damage

    async def run(self) -> None:
        """Restore all of them."""
        for pipeline_id in await self._storage.folders(PIPELINES):
            try:
                await self._restore(pipeline_id)
            except NotFoundError:
                # It is being forgotten.
                continue
            except BrokenObjectError as error:
                await self._damage.set_aside(error, "the pipeline is what Redis knows")

    async def count(self) -> None:
        """Count them, and change nothing."""
        self._report.counts["pipelines"] += len(await self._storage.folders(PIPELINES))

    async def _restore(self, pipeline_id: str) -> None:
        key = pipeline_key(pipeline_id)
        async with answered(self._storage, key):
            stored = await read_record(self._storage, key, StoredPipeline)
        if stored.id != pipeline_id:
            raise BrokenObjectError(key, "it is the record of another pipeline")
        fields = record_fields(stored)
        for kind in ("cancel", "failure"):
            closing = await self._read(closing_key(pipeline_id, kind), Closing)
            if closing is not None:
                fields |= closing_fields(closing, fails=kind == "failure")
        ended = await self._read(ended_key(pipeline_id), Ended)
        if ended is not None:
            fields |= ended_fields(ended)
            # Whoever has ended it may have told only the Redis that is lost.
            folder, until = edges_folder(pipeline_id), ended.at + DAY_SECONDS
            await self._state.restore.reserve(folder, until=until)
        await self._state.restore.pipeline(
            pipeline_id,
            stored.tenant,
            stored.created_at,
            fields,
            ended_at=None if ended is None else ended.at,
            told="" if ended is None else ended.told,
        )
        self._report.counts["pipelines"] += 1

    async def _read(self, key: str, kind: type[T]) -> T | None:
        """The record; None if there is none, or if it is damaged and set aside."""
        try:
            async with answered(self._storage, key):
                return await read_record(self._storage, key, kind)
        except NotFoundError:
            return None
        except BrokenObjectError as error:
            await self._damage.set_aside(error, "the pipeline goes on as if it were not there")
            return None
