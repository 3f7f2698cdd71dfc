"""Forgets batches long after they ended, so that nothing is left of them in Redis or in S3.

S3 goes first, and there the manifests: a rebuild of Redis in between restores a batch as it was, or
finds nothing to restore. So the process may die anywhere, and the next one does it again.
"""

import time
from collections.abc import Sequence
from contextlib import suppress

import structlog

from shared.errors import BrokenObjectError, NotFoundError
from shared.ledger.manifests import batch_folder, manifest_key
from shared.ledger.packs import is_pack, pack_of, read_pack, without_inputs
from shared.ledger.pipelines import pipeline_folder, pipeline_key
from shared.state import BatchRecord, State
from shared.state.files import deleted_key
from shared.storage import Storage

log = structlog.get_logger()

_DAY_SECONDS = 86_400


async def forget_ended(state: State, storage: Storage, *, seconds: float) -> None:
    """Forget batches that ended more than `seconds` ago and have no files any more.

    The batches of one pack go together. If one has to wait, all are tried again a day later.
    """
    before = time.time() - seconds
    while batch_ids := await state.batches.ended_before(before):
        records = {record.id: record for record in await state.batches.many(batch_ids)}
        await state.batches.forget([one for one in batch_ids if one not in records])
        while records:
            _, record = records.popitem()
            manifests, together = await _together(state, storage, record)
            ids = [one.id for one in together]
            for batch_id in ids:
                records.pop(batch_id, None)
            if not await _may_be_forgotten(state, storage, together, before):
                await state.batches.look_again(ids, after=before + _DAY_SECONDS)
                continue
            # Whoever dies from here on is followed by what their records say, which S3 loses.
            await state.away.bring_back(ids)
            # One that left while its objects go would have its place for ever.
            await state.away.stay(ids)
            await storage.remove(manifests)
            for one in together:
                tombstones = [deleted_key(one.tenant, file_id) for file_id in one.file_ids]
                await storage.remove(tombstones + await storage.keys(batch_folder(one.id)))
            await state.batches.forget(ids)
            log.info("batches.forgotten", batches=len(ids))


async def forget_pipelines(state: State, storage: Storage, *, seconds: float) -> None:
    """Forget pipelines that ended more than `seconds` ago. Their batches are forgotten as others.

    S3 goes first, and there what was declared.
    """
    while pipeline_ids := await state.pipelines.ended_before(time.time() - seconds):
        for pipeline_id in pipeline_ids:
            await storage.remove([pipeline_key(pipeline_id)])
            await storage.remove(await storage.keys(pipeline_folder(pipeline_id)))
            await state.pipelines.forget(pipeline_id)
        log.info("pipelines.forgotten", pipelines=len(pipeline_ids))


async def _together(
    state: State, storage: Storage, record: BatchRecord
) -> tuple[list[str], Sequence[BatchRecord]]:
    """The objects that hold the batch's manifest, and all batches with a manifest in them."""
    own = manifest_key(record.id)
    if not (key := pack_of(record.fields)):
        return [own], [record]
    pack = without_inputs(key)
    try:
        packed = [one.manifest.id for one in await read_pack(storage, pack)]
    except NotFoundError:
        packed = []
    except BrokenObjectError as error:
        # It stays: nobody knows which other batches it is about.
        log.error("pack.broken", key=error.key, reason=error.reason)  # noqa: TRY400  # the reason says it all
        return [own], [record]
    mates = await state.batches.many([one for one in packed if one != record.id])
    return [pack, *map(manifest_key, [record.id, *packed])], [record, *mates]


async def _may_be_forgotten(
    state: State, storage: Storage, together: Sequence[BatchRecord], before: float
) -> bool:
    if any(one.ended_at is None or one.ended_at > before for one in together):
        return False
    # An uploaded file does not belong to its batch; all other files do.
    file_ids = [file_id for one in together for file_id in one.file_ids]
    if not all(file.has_record for file in await state.files.many(file_ids)):
        return False
    for pack in {one.fields["key"] for one in together if is_pack(one.fields["key"])}:
        with suppress(NotFoundError):
            await storage.stat(pack)
            # A pack that still has its inputs has the manifests too.
            return False
    return True
