"""Creates pipelines: what was declared goes to S3 first, then each call becomes an open batch.

Any process may repeat any step.
"""

import json
from typing import NamedTuple

import msgspec

from shared import crash, ids
from shared.catalog import Catalog
from shared.dataset.dataset import PinnedDataset
from shared.errors import ConflictError, InvalidTransitionError
from shared.ledger.commits import cancel
from shared.ledger.manifests import Manifest
from shared.ledger.pipelines import (
    Closing,
    StoredPipeline,
    closing_fields,
    closing_key,
    pipeline_key,
    record_fields,
)
from shared.ledger.records import encoded, read_record
from shared.lifecycle import FINAL, Status
from shared.pipeline.answers import answers_schema
from shared.pipeline.declaration import Declaration
from shared.pipeline.plan import NumberedCall, Plan, planned
from shared.state import BatchRecord, PipelineRecord, State
from shared.storage import Storage
from shared.submission.accept import accept
from shared.submission.opening import open_source, start_open
from shared.table.asking import asking_text


class Pipeline(NamedTuple):
    """A pipeline as S3 has it, with its plan."""

    stored: StoredPipeline
    declaration: Declaration
    plan: Plan

    @property
    def id(self) -> str:
        return self.stored.id

    @property
    def tenant(self) -> str:
        return self.stored.tenant

    @property
    def batch_ids(self) -> list[str]:
        """The batches of its calls, in order."""
        return [self.batch_id(call) for call in self.plan.calls]

    @property
    def pinned(self) -> PinnedDataset:
        """Its input."""
        return msgspec.json.decode(self.stored.pinned, type=PinnedDataset)

    def batch_id(self, call: NumberedCall) -> str:
        """The batch of this call."""
        return ids.batch_id(self.tenant, ids.stage_message_id(self.id, call.stage))


def to_pipeline(stored: StoredPipeline) -> Pipeline:
    """The pipeline that was stored."""
    declaration = Declaration.model_validate_json(bytes(stored.declaration))
    return Pipeline(stored, declaration, planned(declaration))


async def read_pipeline(storage: Storage, pipeline_id: str) -> Pipeline:
    """The pipeline. Raises NotFoundError and BrokenObjectError."""
    return to_pipeline(await read_record(storage, pipeline_key(pipeline_id), StoredPipeline))


def stored_of(record: PipelineRecord) -> StoredPipeline:
    """A pipeline as Redis knows it: without its input."""
    return StoredPipeline(
        id=record.id,
        tenant=record.tenant,
        fingerprint=record.fields["fingerprint"],
        created_at=record.number("created_at"),
        expires_at=record.number("expires_at"),
        declaration=msgspec.Raw(record.fields["declaration"].encode()),
        pinned=msgspec.Raw(b"null"),
    )


async def accept_pipeline(
    state: State, storage: Storage, catalog: Catalog, stored: StoredPipeline
) -> Pipeline:
    """Create the pipeline and its batches. Safe to repeat.

    Raises ConflictError if there is one of this id that was declared otherwise.
    """
    if not await storage.create(pipeline_key(stored.id), encoded(stored)):
        first = await read_record(storage, pipeline_key(stored.id), StoredPipeline)
        if first.fingerprint != stored.fingerprint:
            raise ConflictError(
                "A pipeline with this idempotency key exists with another declaration: this is a "
                "conflict. Use another key for another pipeline."
            )
        stored = first
    crash.point("pipelines.created")
    pipeline = to_pipeline(stored)
    await state.pipelines.write(stored.id, stored.tenant, stored.created_at, record_fields(stored))
    crash.point("pipelines.accepted")
    await ensure_batches(state, storage, catalog, pipeline)
    return pipeline


async def ensure_batches(
    state: State, storage: Storage, catalog: Catalog, pipeline: Pipeline
) -> list[BatchRecord]:
    """The batches of the pipeline's calls, created where they are missing."""
    wanted = pipeline.batch_ids
    found = {one.id: one for one in await state.batches.many(wanted)}
    for call, batch_id in zip(pipeline.plan.calls, wanted, strict=True):
        record = found.get(batch_id)
        if record is None:
            await accept(state, storage, _manifest(storage, pipeline, call))
            record = await state.batches.get(batch_id)
        if record.status is Status.VALIDATING:
            await start_open(state, storage, catalog, record)
    return await state.batches.many(wanted)


def _manifest(storage: Storage, pipeline: Pipeline, call: NumberedCall) -> Manifest:
    """The batch of a call, the same whoever makes it."""
    stored, declaration = pipeline.stored, pipeline.declaration
    batch_id = pipeline.batch_id(call)
    source = open_source(storage.bucket, stored.tenant, batch_id, call.model)
    schema = answers_schema(call.call)
    if call.call.retries and schema is not None:
        source["asking"] = asking_text(call.call.retries, schema)
    return Manifest(
        id=batch_id,
        tenant=stored.tenant,
        message_id=ids.stage_message_id(stored.id, call.stage),
        fingerprint=f"{stored.fingerprint}:{call.stage}",
        door="http",
        endpoint=call.call.endpoint,
        completion_window=declaration.completion_window,
        created_at=stored.created_at,
        expires_at=stored.expires_at,
        priority=declaration.priority,
        metadata=json.dumps(declaration.metadata) if declaration.metadata else "",
        output_seconds=stored.output_seconds,
        cache_seconds=stored.cache_seconds.get(call.stage, 0),
        pipeline=stored.id,
        **source,
    )


async def close_pipeline(
    state: State, storage: Storage, pipeline: Pipeline, closing: Closing, *, fails: bool = False
) -> None:
    """Let a pipeline end before it is through: it was cancelled, or it fails. Safe to repeat.

    Its batches are cancelled; what they have by then is kept.
    """
    stored = pipeline.stored
    key = closing_key(stored.id, "failure" if fails else "cancel")
    if not await storage.create(key, encoded(closing)):
        closing = await read_record(storage, key, Closing)
    crash.point("pipelines.closed")
    await state.pipelines.write(
        stored.id, stored.tenant, stored.created_at, closing_fields(closing, fails=fails)
    )
    await state.restore.raise_if_under_way()
    await cancel_batches(state, storage, pipeline)


async def cancel_batches(state: State, storage: Storage, pipeline: Pipeline) -> None:
    """Cancel those of its batches that have not ended."""
    for record in await state.batches.many(pipeline.batch_ids):
        if record.status in FINAL or record.status is Status.CANCELLING:
            continue
        try:
            await cancel(state, storage, record.id)
        except InvalidTransitionError:
            # It has ended in the meantime.
            continue
