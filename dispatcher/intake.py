"""Messages from the bus become batches, additions to them, cancellations and replays.

A delivery is settled within milliseconds of its durable effect; no work waits in the broker.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

import stamina
import structlog
from aio_pika.abc import AbstractIncomingMessage

from dispatcher.acts import act_of
from dispatcher.burial import Burial, is_dead, place_of
from dispatcher.cancellations import Cancellations
from dispatcher.delivery import Delivery
from dispatcher.envelope import decoded
from dispatcher.inputs import CrowdedError, Inputs
from dispatcher.open_batches import OpenBatches
from dispatcher.packing import Packer
from dispatcher.planning import Planner
from dispatcher.ready import ReadyBatches
from dispatcher.replay import Replay
from dispatcher.replies import Replies
from dispatcher.settlement import Outcome, Settlement
from dispatcher.submissions import Submissions
from dispatcher.traces import note_outcome, receiving
from shared import crash
from shared.bus import messages, open_messages, replays
from shared.bus.connection import Bus
from shared.bus.messages import RejectedError
from shared.errors import TransientError
from shared.monitoring.trail import Trail
from shared.settings import THIRTY_DAYS
from shared.state import State
from shared.storage import Storage
from shared.submission.additions import Additions
from shared.submission.admission import NewBatchQuota

log = structlog.get_logger()

#: A message waits here this long while Redis or S3 is away. The broker takes it back after 30
#: minutes.
_PATIENCE_SECONDS = 600.0
_MAX_PAUSE_SECONDS = 5.0
#: Suspects are taken in any order, so that the one that kills is not always before the same others.
_SHUFFLE_SECONDS = 0.5


class Intake:
    """Takes batch messages; safe to run in many processes at once.

    With a planner, inline batches start in the step that makes them.
    """

    def __init__(
        self,
        state: State,
        storage: Storage,
        bus: Bus,
        *,
        service_user: str,
        inputs: Inputs,
        quota: NewBatchQuota,
        additions: Additions,
        replay: Replay,
        trail: Trail,
        planner: Planner | None = None,
        cache_seconds: int = THIRTY_DAYS,
    ) -> None:
        self._service_user = service_user
        self._state = state
        self._replay = replay
        self._trail = trail
        self._replies = Replies(state)
        self._ready = ReadyBatches(state, storage)
        self._cancellations = Cancellations(state, storage, self._replies)
        self._open_batches = OpenBatches(state, storage, self._replies, additions)
        packer = Packer(state, storage, quota=quota, planner=planner)
        self._submissions = Submissions(
            state,
            storage,
            inputs=inputs,
            quota=quota,
            packer=packer,
            cache_seconds=cache_seconds,
        )
        self._burial = Burial(bus)
        self._settlement = Settlement(bus, self._burial, service_user=service_user)
        self._one_at_a_time = asyncio.Lock()

    async def take(self, message: AbstractIncomingMessage) -> None:
        """Handle one delivery and settle it."""
        delivery = Delivery(message, service_user=self._service_user)
        is_settled = False
        with receiving(delivery) as span:
            while not is_settled:
                outcome, error = await self._handle(delivery)
                note_outcome(span, outcome)
                is_settled = await self._settlement.settle(delivery, outcome, error)

    async def _handle(self, delivery: Delivery) -> tuple[Outcome, Exception | None]:
        """Handle the message; returns the outcome."""
        try:
            if delivery.is_suspect:
                async with self._alone():
                    await self._obey_patiently(delivery)
            else:
                await self._obey_patiently(delivery)
        except CrowdedError:
            return Outcome.CROWDED, None
        except TransientError as error:
            fault = {"code": "unavailable", "reason": str(error)}
            log.warning("message.delayed", **fault, **delivery.log_fields)
            return Outcome.SUSPECT_OUTAGE if delivery.is_suspect else Outcome.OUTAGE, None
        except Exception as error:  # noqa: BLE001  # the loop must outlive a bug; its message may quote a prompt
            kind = type(error).__name__
            fault = {"code": "internal_error", "error": kind, "where": place_of(error)}
            log.error("message.broke", **fault, **delivery.log_fields)  # noqa: TRY400  # as above
            return Outcome.BROKEN_FOR_GOOD if delivery.is_suspect else Outcome.BROKEN, error
        return Outcome.DONE, None

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """One suspect at a time, so that a message that kills the dispatcher affects no other."""
        await asyncio.sleep(random.uniform(0, _SHUFFLE_SECONDS))
        try:
            await asyncio.wait_for(self._one_at_a_time.acquire(), _PATIENCE_SECONDS)
        except TimeoutError as error:
            raise TransientError("Other suspect messages take too long.") from error
        try:
            yield
        finally:
            self._one_at_a_time.release()

    async def _obey_patiently(self, delivery: Delivery) -> None:
        """Wait here during an outage: returning to the queue counts towards the delivery limit."""
        # Almost every message needs one attempt, and a context for more costs as much as decoding.
        with suppress(TransientError):
            await self._obey_or_refuse(delivery)
            return
        async for attempt in stamina.retry_context(
            on=TransientError,
            attempts=None,
            timeout=_PATIENCE_SECONDS,
            wait_max=_MAX_PAUSE_SECONDS,
        ):
            with attempt:
                await self._obey_or_refuse(delivery)

    async def _obey_or_refuse(self, delivery: Delivery) -> None:
        envelope = delivery.envelope
        crash.point("intake.begin")
        try:
            touched = await self._obey(delivery)
            self._tell(delivery, touched)
        except RejectedError as error:
            # What was not found, or not allowed, may be what an older Redis lacks.
            await self._state.restore.raise_if_under_way()
            codes = sorted({reason.code for reason in error.reasons})
            self._tell(delivery, None, codes)
            # The reasons are left out: they name fields, and a sender may name a field anything.
            log.info("message.rejected", codes=codes, count=error.count, **delivery.log_fields)
            if is_dead(error) or not envelope.can_be_answered:
                await self._burial.bury(delivery, error)
            if envelope.type == replays.REPLAY:
                await self._replay.refuse(envelope, delivery.body, error)
            else:
                await self._replies.refuse(envelope, delivery.body, error)
        crash.point("intake.done")

    def _tell(self, delivery: Delivery, touched: str | None, codes: Sequence[str] = ()) -> None:
        """Write to the trail what the message did, or why it was refused."""
        if (act := act_of(delivery.envelope, touched, codes, self._service_user)) is not None:
            self._trail.write(act)

    async def _obey(self, delivery: Delivery) -> str | None:
        """Do what the message asks for, and return the id of the batch that it changes, if any.

        Raises RejectedError, CrowdedError and TransientError.
        """
        envelope, body = delivery.envelope, delivery.body
        if envelope.type == messages.READY and envelope.user == self._service_user:
            await self._ready.take(body)
        elif envelope.type == messages.CANCEL:
            return await self._cancellations.take(envelope, body)
        elif envelope.type == open_messages.REQUESTS:
            return await self._open_batches.add(envelope, body)
        elif envelope.type == open_messages.CLOSE:
            return await self._open_batches.close(envelope, body)
        elif envelope.type == replays.REPLAY:
            request = decoded(envelope, body, replays.decode_replay)
            await self._replay.answer(envelope, body, request)
        else:
            await self._submissions.take(envelope, body, is_suspect=delivery.is_suspect)
        return None
