"""Replies to messages. They go through the outbox, so that none is lost."""

from dispatcher.envelope import Envelope
from shared import ids
from shared.bus import messages, open_messages, replays
from shared.bus.dead_letters import letter_id
from shared.bus.messages import RejectedError
from shared.bus.received import MAX_CORRELATION_ID
from shared.bus.replies import (
    AcceptedBatch,
    AcceptedReply,
    AddedRequests,
    RejectedReply,
    Reply,
)
from shared.openai.shapes import BatchWarning
from shared.state import BatchRecord, State
from shared.state.batch_record import warnings_of


class Replies:
    """Answers messages whose senders can be answered, and no others."""

    def __init__(self, state: State) -> None:
        self._state = state

    async def accept(
        self,
        envelope: Envelope,
        body: bytes,
        record: BatchRecord,
        *,
        is_duplicate: bool,
        requests: AddedRequests | None = None,
    ) -> None:
        """Show the batch as it is now, in the form that `accept.lua` gives to a new one.

        `requests` are those that the message has added to it.
        """
        batch = AcceptedBatch(
            id=record.id,
            status=record.status,
            created_at=record.number("created_at"),
            expires_at=record.number("expires_at"),
            warnings=[BatchWarning(**one) for one in warnings_of(record.fields)],
        )
        answer = AcceptedReply(duplicate=is_duplicate, batch=batch, requests=requests)
        await self._add(envelope, body, Reply(answer))

    async def refuse(self, envelope: Envelope, body: bytes, error: RejectedError) -> None:
        """Reply with the reasons why the message was refused."""
        await self._add(envelope, body, Reply(RejectedReply.of(error)))

    async def _add(self, envelope: Envelope, body: bytes, answer: Reply) -> None:
        if (address := address_of(envelope, body)) is not None:
            await self._state.outbox.add("replies", {**address, "body": answer.model_dump_json()})


def address_of(envelope: Envelope, body: bytes) -> dict[str, str] | None:
    """The queue and the ids of the reply; None if the sender cannot be answered."""
    if envelope.reply_to is None:
        return None
    return {
        "to": envelope.reply_to,
        "message_id": _name(envelope, body),
        "correlation_id": envelope.correlation_id[:MAX_CORRELATION_ID],
    }


def _name(envelope: Envelope, body: bytes) -> str:
    """The message id of the answer."""
    if not envelope.has_valid_id:
        # There is no batch, so the reply names the dead letter.
        letter = letter_id(envelope.user, envelope.routing_key, envelope.message_id, body)
        return f"{letter}.reply"
    match envelope.type:
        case messages.CANCEL:
            # The message id of a cancellation names no batch.
            return f"{envelope.message_id}.cancel.reply"
        case open_messages.REQUESTS:
            return f"{envelope.message_id}.requests.reply"
        case open_messages.CLOSE:
            return f"{envelope.message_id}.close.reply"
        case replays.REPLAY:
            return f"{envelope.message_id}.replayed"
        case _:
            return f"{ids.batch_id(envelope.tenant or '', envelope.message_id)}.reply"
