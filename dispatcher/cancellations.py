"""Messages that cancel batches."""

from dispatcher.envelope import Envelope, decoded
from dispatcher.replies import Replies
from shared.bus.messages import Reason, RejectedError, decode_cancellation
from shared.errors import InvalidTransitionError, NotFoundError
from shared.ledger.commits import cancel
from shared.lifecycle import Status
from shared.state import BatchRecord, State
from shared.storage import Storage


class Cancellations:
    """Cancels batches for their tenants."""

    def __init__(self, state: State, storage: Storage, replies: Replies) -> None:
        self._state = state
        self._storage = storage
        self._replies = replies

    async def take(self, envelope: Envelope, body: bytes) -> str:
        """Cancel the batch and answer. Returns its id. Raises RejectedError."""
        cancellation = decoded(envelope, body, decode_cancellation)
        record = await self._own_batch(envelope.tenant, cancellation.batch_id)
        try:
            is_new = await cancel(self._state, self._storage, record.id)
        except InvalidTransitionError as error:
            # Repeating a cancellation is no error.
            if error.status != Status.CANCELLED:
                text = f"batch_id: Cannot cancel a batch with status '{error.status}'."
                raise RejectedError([Reason("batch_ended", text, "batch_id")]) from error
            is_new = False
        record = await self._state.batches.get(record.id)
        await self._replies.accept(envelope, body, record, is_duplicate=not is_new)
        return record.id

    async def _own_batch(self, tenant: str | None, batch_id: str) -> BatchRecord:
        """The tenant's batch. Another tenant's batch counts as missing."""
        # First, because a batch that is missing during a restore may still come back.
        await self._state.restore.raise_if_under_way()
        try:
            record = await self._state.batches.get(batch_id)
        except NotFoundError:
            record = None
        if record is None or record.tenant != tenant:
            text = f"batch_id: No batch found with id '{batch_id}'."
            raise RejectedError([Reason("unknown_batch", text, "batch_id")])
        return record
