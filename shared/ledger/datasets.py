"""The dataset of a batch, as it was pinned: the template, and each object with its ETag."""

import secrets

from shared.dataset.dataset import PinnedDataset
from shared.ledger.records import encoded, read_record
from shared.retention import RESERVED_SECONDS
from shared.state import State
from shared.storage import Storage, Stored


async def write_dataset(
    state: State, storage: Storage, batch_id: str, pinned: PinnedDataset
) -> Stored:
    """Write it under a new name, before the batch's manifest names it.

    It is swept after a day, unless a batch is accepted with it.
    """
    key = f"batches/{batch_id}/dataset-{secrets.token_hex(8)}.json"
    await state.files.reserve(key, seconds=RESERVED_SECONDS)
    return await storage.put(key, encoded(pinned))


async def read_dataset(storage: Storage, key: str) -> PinnedDataset:
    """The dataset. Raises NotFoundError and BrokenObjectError."""
    return await read_record(storage, key, PinnedDataset)
