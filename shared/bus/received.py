"""What a tenant may publish: of each type its schema, routing key and addresses. Does no I/O."""

import re
from collections.abc import Callable
from typing import Literal, NamedTuple

from shared.bus import messages, open_messages, replays
from shared.bus.topology import cancel_key, close_key, replay_key, requests_key, submit_key

#: Of the sender's own headers, as AMQP encodes them.
MAX_HEADER_BYTES = 8 * 1024
#: Characters.
MAX_CORRELATION_ID = 128
PERSISTENT = 2


def _in_any_case(text: str) -> str:
    """A pattern for the text: JSON Schema has no flag for it."""
    return "".join(f"[{one.lower()}{one.upper()}]" if one.isalpha() else one for one in text)


#: Media types are the same in upper and lower case.
CONTENT_TYPE = (
    rf"^{_in_any_case('application/json')}[ \t]*(;[ \t]*{_in_any_case('charset=utf-8')}[ \t]*)?$"
)


class Received(NamedTuple):
    """What differs between the types of messages."""

    #: The `schema` of the body.
    schema: str
    #: The routing key, by the tenant.
    key: Callable[[str], str]
    #: The kinds of queues that may be named for the answer.
    queues: tuple[Literal["reply", "sub"], ...] = ("reply",)


RECEIVED = {
    messages.SUBMIT: Received("batch.submit/1", submit_key),
    open_messages.REQUESTS: Received("batch.requests/1", requests_key),
    open_messages.CLOSE: Received("batch.close/1", close_key),
    messages.CANCEL: Received("batch.cancel/1", cancel_key),
    replays.REPLAY: Received("batch.replay/1", replay_key, ("sub", "reply")),
}


def is_json(content_type: str) -> bool:
    """Whether a message of this content type can be read."""
    return re.fullmatch(CONTENT_TYPE, content_type) is not None
