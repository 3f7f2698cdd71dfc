"""Creates several batches at once: one object in S3 and one step in Redis for all of them."""

import asyncio
from collections.abc import Sequence

import msgspec

from shared import crash
from shared.errors import TransientError
from shared.ledger.manifests import Manifest
from shared.ledger.packs import PackedBatch, pack, pack_prefix, without_inputs
from shared.retention import RESERVED_SECONDS
from shared.state import NewBatch, PackedAcceptance, State
from shared.storage import Storage
from shared.submission.accept import Accepted, accept, created_record, new_batch


async def accept_together(
    state: State, storage: Storage, manifests: Sequence[Manifest]
) -> list[Accepted | BaseException]:
    """For each batch what `accept` returns, or the error because of which it was not created.

    Nobody may ever ask for one of them again: a manifest in a pack is not create-only.
    """
    prefix = pack_prefix()
    key = without_inputs(prefix)
    packed = [msgspec.structs.replace(one, pack=key) for one in manifests]
    [outcomes] = await asyncio.gather(
        _accept(state, storage, prefix, packed), return_exceptions=True
    )
    if isinstance(outcomes, TransientError):
        # Each caller raises one of its own.
        return [TransientError(str(outcomes)) for _ in packed]
    if isinstance(outcomes, BaseException):
        # A bug. The batch that causes it must not fail the others, and those that were created
        # before it are met. All name the pack, which may have them.
        alone = (accept(state, storage, one) for one in packed)
        return await asyncio.gather(*alone, return_exceptions=True)
    return outcomes


async def _accept(
    state: State, storage: Storage, prefix: str, packed: Sequence[Manifest]
) -> list[Accepted | BaseException]:
    # What a crash leaves is swept, unless a rebuild of Redis comes before that, and makes batches.
    await state.files.reserve(prefix, seconds=RESERVED_SECONDS)
    await storage.put(without_inputs(prefix), pack((), [PackedBatch(one) for one in packed]))
    crash.point("together.packed")
    batches = [new_batch(one) for one in packed]
    outcomes = await state.batches.accept_pack(prefix, batches)
    crash.point("together.accepted")
    return list(map(_outcome, batches, outcomes))


def _outcome(batch: NewBatch, outcome: PackedAcceptance | Exception) -> Accepted | BaseException:
    if isinstance(outcome, Exception):
        return outcome
    created = created_record(batch) if outcome == "accepted" else None
    return Accepted(batch.id, outcome == "duplicate", created)
