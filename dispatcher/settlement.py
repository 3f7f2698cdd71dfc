"""How each delivery ends: one table from what became of it to what the broker is told.

Nothing else acks or rejects.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum, auto

import structlog

from dispatcher.acks import Acks
from dispatcher.burial import Burial, place_of
from dispatcher.delivery import Delivery
from shared import crash
from shared.bus.broker_errors import CONNECTION_ERRORS
from shared.bus.connection import Bus
from shared.bus.messages import Reason, RejectedError
from shared.errors import TransientError

log = structlog.get_logger()


class Outcome(Enum):
    """What became of a message that was taken in hand."""

    #: What it asks for is durable, or its refusal is.
    DONE = auto()
    #: Its tenant has enough messages in hand.
    CROWDED = auto()
    #: Redis, S3 or the broker was away for as long as a message may wait here.
    OUTAGE = auto()
    #: The same, for a message that may be what kills us.
    SUSPECT_OUTAGE = auto()
    #: A fault of ours, which may have been chance.
    BROKEN = auto()
    #: A fault of ours, time and again.
    BROKEN_FOR_GOOD = auto()


class Verb(Enum):
    """What is done with a delivery."""

    ACK = auto()
    #: A copy goes to the end of the queue, and no delivery limit counts it.
    SEND_TO_BACK = auto()
    #: Back to the head of the queue, counted towards its delivery limit.
    REQUEUE = auto()
    #: To the dead letters, with the place of the fault.
    BURY = auto()


#: The verbs are tried in this order until one works.
VERBS: Mapping[Outcome, Sequence[Verb]] = {
    Outcome.DONE: (Verb.ACK,),
    Outcome.CROWDED: (Verb.SEND_TO_BACK,),
    Outcome.OUTAGE: (Verb.SEND_TO_BACK, Verb.REQUEUE),
    Outcome.SUSPECT_OUTAGE: (Verb.REQUEUE,),
    Outcome.BROKEN: (Verb.REQUEUE,),
    Outcome.BROKEN_FOR_GOOD: (Verb.BURY, Verb.REQUEUE),
}


class Settlement:
    """Settles the deliveries of one dispatcher."""

    def __init__(self, bus: Bus, burial: Burial, *, service_user: str) -> None:
        self._bus = bus
        self._burial = burial
        self._service_user = service_user
        self._acks = Acks()
        self._act: Mapping[Verb, Callable[[Delivery, Exception | None], Awaitable[None]]] = {
            Verb.ACK: self._ack,
            Verb.SEND_TO_BACK: self._send_to_back,
            Verb.REQUEUE: self._requeue,
            Verb.BURY: self._bury,
        }

    async def settle(
        self, delivery: Delivery, outcome: Outcome, error: Exception | None = None
    ) -> bool:
        """Do what the table says; False if nothing of it works and the message is still in hand.

        `error` is the fault that broke it.
        """
        for verb in VERBS[outcome]:
            try:
                await self._act[verb](delivery, error)
            except TransientError:
                continue
            except Exception as again:  # noqa: BLE001  # unsettled, it would hold a place for half an hour
                log.warning("message.dropped", error=type(again).__name__, where=place_of(again))
                await _tell(self._acks.drop(delivery.message))
            return True
        return False

    async def _ack(self, delivery: Delivery, _: Exception | None = None) -> None:
        await _tell(self._acks.ack(delivery.message))
        crash.point("intake.acknowledged")

    async def _requeue(self, delivery: Delivery, _: Exception | None) -> None:
        await _tell(self._acks.requeue(delivery.message))

    async def _send_to_back(self, delivery: Delivery, _: Exception | None) -> None:
        """If we die before the ack, the message is there twice, which is harmless."""
        if self._bus.user != self._service_user or not delivery.has_small_headers:
            raise TransientError("A copy would not stand for the message.")
        await self._bus.publish(
            delivery.envelope.exchange,
            delivery.envelope.routing_key,
            delivery.body,
            properties={**delivery.own_properties, "user_id": self._bus.user},
            headers=delivery.copy_headers,
            mandatory=True,
        )
        await self._ack(delivery)

    async def _bury(self, delivery: Delivery, error: Exception | None) -> None:
        text = f"The dispatcher broke on the message with a {type(error).__name__}."
        rejection = RejectedError([Reason("internal_error", text)])
        await self._burial.bury(delivery, rejection, where=place_of(error) if error else None)
        await self._ack(delivery)


async def _tell(settling: Awaitable[None]) -> None:
    """If the channel is gone, the broker delivers the message again, which is harmless."""
    try:
        await settling
    except CONNECTION_ERRORS as error:
        log.warning("message.not_settled", error=type(error).__name__)
