"""The batch that a tenant's message names."""

from shared.bus.messages import Reason, RejectedError
from shared.errors import NotFoundError
from shared.state import BatchRecord, State


async def own_batch(state: State, tenant: str | None, batch_id: str) -> BatchRecord:
    """The tenant's batch. Another tenant's batch counts as missing.

    Raises RejectedError, and TransientError if it may be missing for a rebuild.
    """
    try:
        record = await state.batches.get(batch_id)
    except NotFoundError:
        record = None
    if record is None or record.tenant != tenant:
        text = f"batch_id: No batch found with id '{batch_id}'."
        raise RejectedError([Reason("unknown_batch", text, "batch_id")])
    return record
