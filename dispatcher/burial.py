"""Decides which messages become dead letters, and publishes them with their reasons."""

import time
import traceback
from pathlib import Path

from dispatcher.delivery import Delivery
from shared.bus.connection import Bus
from shared.bus.dead_letters import DEAD, dead_table, letter_id, own_headers
from shared.bus.messages import Reason, RejectedError
from shared.bus.topology import DEAD_EXCHANGE, DEAD_KEY

#: A message with one of these is a dead letter even if its sender gets an answer.
_DEAD_CODES = {"bad_routing_key", "tenant_mismatch", "too_large", "unsupported_media"}
_DEAD_PARAMS = {"message_id", "type"}
_ROOT = Path(__file__).parents[1]


class Burial:
    """Publishes messages to the dead letters."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def bury(
        self, delivery: Delivery, error: RejectedError, *, where: str | None = None
    ) -> None:
        """Publish the message with its reasons, which the broker's own `reject` would lose.

        `where` is the place in our code, for a fault of ours. Raises TransientError.
        """
        envelope = delivery.envelope
        table = dead_table(
            user=envelope.user,
            exchange=envelope.exchange,
            routing_key=envelope.routing_key,
            properties=envelope.properties,
            reasons=error.reasons,
            reason_count=error.count,
            deliveries=delivery.count,
            at=int(time.time()),
            where=where,
        )
        headers = own_headers(envelope.headers) if delivery.has_small_headers else {}
        name = letter_id(envelope.user, envelope.routing_key, envelope.message_id, delivery.body)
        await self._bus.publish(
            DEAD_EXCHANGE,
            DEAD_KEY,
            delivery.body,
            properties={
                **delivery.own_properties,
                "message_id": name,
                "user_id": self._bus.user,
            },
            headers={**headers, DEAD: table},
            mandatory=True,
        )


def is_dead(error: RejectedError) -> bool:
    """Whether the refused message is a dead letter even if its sender gets an answer."""
    return error.is_dead or any(map(_is_dead, error.reasons))


def place_of(error: Exception) -> str:
    """The innermost line of our own code that the error passed through."""
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_relative_to(_ROOT) and ".venv" not in frame.filename
    ]
    if not own:
        return "unknown"
    path = Path(own[-1].filename).relative_to(_ROOT)
    return f"{path}:{own[-1].lineno} in {own[-1].name}"


def _is_dead(reason: Reason) -> bool:
    # A valid message may name an input that is too large.
    is_of_input = (reason.param or "").startswith("input.")
    return reason.param in _DEAD_PARAMS or (reason.code in _DEAD_CODES and not is_of_input)
