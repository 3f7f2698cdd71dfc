"""Which messages are acts of the trail, and what their lines say."""

from collections.abc import Sequence

from dispatcher.envelope import Envelope
from shared import ids
from shared.bus import messages, replays
from shared.monitoring.trail import Act


def act_of(
    envelope: Envelope, cancelled: str | None, codes: Sequence[str], service_user: str
) -> Act | None:
    """The act of a message that was taken, or refused for reasons with these `codes`.

    `cancelled` is the batch that it cancels. None for messages that change nothing, and for those
    of our own processes, of which the gateway has told.
    """
    if envelope.type == replays.REPLAY or envelope.user == service_user:
        return None
    is_cancellation = envelope.type == messages.CANCEL
    made = None
    if envelope.tenant and envelope.has_valid_id and not is_cancellation:
        made = ids.batch_id(envelope.tenant, envelope.message_id)
    return Act(
        "batch.cancelled" if is_cancellation else "batch.created",
        "bus",
        "refused" if codes else "done",
        tenant=envelope.tenant,
        object=cancelled or made,
        why=" ".join(codes) or None,
        request_id=envelope.message_id if envelope.has_valid_id else None,
    )
