"""Which messages are acts of the trail, and what their lines say."""

from collections.abc import Mapping, Sequence

from dispatcher.envelope import Envelope
from shared import ids
from shared.bus import messages, open_messages, replays
from shared.monitoring.trail import Act

#: What messages do to a batch that exists, by their type. All others make one.
_TO_KNOWN: Mapping[str, str] = {
    messages.CANCEL: "batch.cancelled",
    open_messages.REQUESTS: "batch.extended",
    open_messages.CLOSE: "batch.closed",
}


def act_of(
    envelope: Envelope, touched: str | None, codes: Sequence[str], service_user: str
) -> Act | None:
    """The act of a message that was taken, or refused for reasons with these `codes`.

    `touched` is the batch that it cancels, extends or closes. None for messages that change
    nothing, and for those of our own processes, of which the gateway has told.
    """
    if envelope.type == replays.REPLAY or envelope.user == service_user:
        return None
    made = None
    if envelope.tenant and envelope.has_valid_id and envelope.type not in _TO_KNOWN:
        made = ids.batch_id(envelope.tenant, envelope.message_id)
    return Act(
        _TO_KNOWN.get(envelope.type, "batch.created"),
        "bus",
        "refused" if codes else "done",
        tenant=envelope.tenant,
        object=touched or made,
        why=" ".join(codes) or None,
        request_id=envelope.message_id if envelope.has_valid_id else None,
    )
