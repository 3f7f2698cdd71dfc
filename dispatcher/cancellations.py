"""Messages that cancel batches."""

from dispatcher.envelope import Envelope, decoded
from dispatcher.own_batches import own_batch
from dispatcher.replies import Replies
from shared.bus.messages import Reason, RejectedError, decode_cancellation
from shared.errors import InvalidTransitionError
from shared.ledger.commits import cancel
from shared.lifecycle import Status
from shared.state import State
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
        record = await own_batch(self._state, envelope.tenant, cancellation.batch_id)
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
