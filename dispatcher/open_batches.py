"""Messages that add requests to open batches, and that close them."""

from collections.abc import Iterator
from contextlib import contextmanager

from dispatcher.envelope import Envelope, decoded
from dispatcher.own_batches import own_batch
from dispatcher.replies import Replies
from shared.bus.messages import Reason, RejectedError
from shared.bus.open_messages import decode_closing, decode_requests
from shared.bus.replies import AddedRequests
from shared.errors import ConflictError, InvalidInputError
from shared.state import BatchRecord, State
from shared.storage import Storage
from shared.submission.additions import (
    Additions,
    FullError,
    NameConflictError,
    RoomError,
    close,
    require_no_pipeline,
)
from shared.submission.admission import refusal_text


class OpenBatches:
    """Adds requests to open batches for their tenants, and closes them. Repeats are harmless."""

    def __init__(
        self, state: State, storage: Storage, replies: Replies, additions: Additions
    ) -> None:
        self._state = state
        self._storage = storage
        self._replies = replies
        self._additions = additions

    async def add(self, envelope: Envelope, body: bytes) -> str:
        """Add all requests or none, and answer. Returns the batch's id.

        Raises RejectedError and TransientError.
        """
        given = decoded(envelope, body, decode_requests)
        batch = await own_batch(self._state, envelope.tenant, given.batch_id)
        with _refusing(batch):
            require_no_pipeline(batch)
            done = await self._additions.add(batch, given.requests)
        counts = AddedRequests(
            added=done.added, repeated=done.repeated, total=done.batch.number("total")
        )
        await self._replies.accept(
            envelope, body, done.batch, is_duplicate=not done.added, requests=counts
        )
        return batch.id

    async def close(self, envelope: Envelope, body: bytes) -> str:
        """Let the batch take no more requests, and answer. Returns its id.

        Raises RejectedError and TransientError.
        """
        given = decoded(envelope, body, decode_closing)
        batch = await own_batch(self._state, envelope.tenant, given.batch_id)
        with _refusing(batch):
            require_no_pipeline(batch)
            record = await close(self._state, self._storage, batch.id)
        is_duplicate = "closed" in batch.fields
        await self._replies.accept(envelope, body, record, is_duplicate=is_duplicate)
        return batch.id


@contextmanager
def _refusing(batch: BatchRecord) -> Iterator[None]:
    """What open batches refuse, as refusals of a message."""
    try:
        yield
    except RoomError as error:
        reason = Reason("quota_exceeded", refusal_text(batch.tenant, error.reached))
    except NameConflictError as error:
        reason = Reason("custom_id_conflict", f"requests: {error}", "requests")
    except ConflictError as error:
        reason = Reason("not_open", f"batch_id: {error}", "batch_id")
    except FullError as error:
        reason = Reason("batch_full", f"requests: {error}", "requests")
    except InvalidInputError as error:
        reason = Reason("requests_invalid", f"requests: {error}", "requests")
    else:
        return
    raise RejectedError([reason])
