"""The relay: publishes the entries of an outbox in order, and removes them after the confirm.

One relay at a time works on an outbox, under a lease. It always reads from the start, so a crash
repeats entries and never skips one, and a repeat has the same message id. Progress is in no outbox:
it is published in between, or dropped.
"""

import asyncio
import json
import time
from collections import defaultdict
from contextlib import suppress
from itertools import chain

import structlog

from shared import crash
from shared.bus import event_spans
from shared.bus.broker_errors import RefusedError, UnroutableError
from shared.bus.connection import Bus
from shared.bus.event_messages import EventMessages
from shared.bus.messages import READY, REPLY
from shared.bus.topology import EVENTS_EXCHANGE, SUBMIT_EXCHANGE, submit_key
from shared.errors import TransientError
from shared.state import State
from shared.state.leases import Lease
from shared.state.outbox import Box, Entry
from shared.tasks import end
from shared.tracing import spans

log = structlog.get_logger()

_READ = 200
#: Progress events in one round, so that changes of state never wait for more.
_MAX_PROGRESS = 100
#: Seconds between offers of an event to a queue that refuses it. A broker that is shutting down
#: refuses as well, until it is down.
_OFFER_PAUSES = (0.2, 1.0, 4.0)
#: For this time after a queue refused all offers, no tenant's events wait for longer pauses.
_REFUSALS_KNOWN_SECONDS = 60.0


class Relay:
    """Publishes the entries of one outbox for as long as it runs."""

    def __init__(
        self,
        state: State,
        bus: Bus,
        box: Box,
        *,
        holder: str,
        service_user: str,
        messages: EventMessages | None = None,
        lease_seconds: float = 10.0,
        progress_seconds: float = 1.0,
    ) -> None:
        self._state = state
        self._bus = bus
        self._box: Box = box
        self._lease: Lease = state.lease(f"relay:{box}", holder, seconds=lease_seconds)
        self._service_user = service_user
        self._messages = messages or EventMessages()
        self._progress_seconds = progress_seconds
        self._progress_due = 0.0
        self._refusals_known_until = 0.0

    async def run(self) -> None:
        """Relay until cancelled, and wait while the broker or Redis is away."""
        try:
            while True:
                try:
                    if await self._lease.hold():
                        await self._relay_while_held()
                    else:
                        await asyncio.sleep(self._lease.seconds / 8)
                except TransientError as error:
                    log.warning("relay.waiting", box=self._box, reason=str(error))
                    await asyncio.sleep(1)
        finally:
            # It expires on its own as well.
            with suppress(TransientError):
                await asyncio.shield(self._lease.release())

    async def relay_some(self, *, wait_seconds: float) -> int:
        """Publish the oldest entries, or wait for one. Returns how many were published."""
        entries = await self._state.outbox.read(self._box, limit=_READ, wait_seconds=wait_seconds)
        if entries:
            crash.point("relay.read")
        in_order = defaultdict(list)
        for entry in entries:
            in_order[self._order_key(entry)].append(entry)
        published = await asyncio.gather(*map(self._publish_in_order, in_order.values()))
        done = list(chain.from_iterable(published))
        if done:
            crash.point("relay.published")
            await self._state.outbox.remove(self._box, done)
            crash.point("relay.removed")
        if len(done) < len(entries):
            raise TransientError(f"{len(entries) - len(done)} entries were not confirmed.")
        return len(done)

    async def relay_progress(self) -> int:
        """Publish some of the progress that is due, once. Returns how much was due."""
        entries = await self._state.events.take_progress(limit=_MAX_PROGRESS)
        went = await asyncio.gather(*map(self._publish_event, entries), return_exceptions=True)
        lost = [outcome for outcome in went if isinstance(outcome, BaseException)]
        if broken := [error for error in lost if not isinstance(error, TransientError)]:
            raise broken[0]
        if lost:
            log.info("progress.dropped", count=len(lost), reason=str(lost[0]))
        return len(entries)

    async def _relay_while_held(self) -> None:
        """Relay until the lease is lost, which a round that publishes may not notice."""
        relaying = asyncio.create_task(self._relay_on())
        try:
            is_held = True
            while is_held and not relaying.done():
                await asyncio.wait([relaying], timeout=self._lease.seconds / 4)
                is_held = bool(await self._lease.hold())
        finally:
            await end(relaying)
        if not relaying.cancelled():
            relaying.result()

    async def _relay_on(self) -> None:
        while True:
            if self._box != "events":
                await self.relay_some(wait_seconds=self._lease.seconds / 4)
                continue
            left = self._progress_due - time.monotonic()
            await self.relay_some(wait_seconds=max(0.0, min(left, self._lease.seconds / 4)))
            if time.monotonic() < self._progress_due:
                continue
            began = time.monotonic()
            # The rest of a full round comes after the newly written changes of state.
            if await self.relay_progress() < _MAX_PROGRESS:
                self._progress_due = began + self._progress_seconds

    def _order_key(self, entry: Entry) -> str:
        return entry.snapshot()["id"] if self._box == "events" else entry.id

    async def _publish_in_order(self, entries: list[Entry]) -> list[str]:
        """The ids of the entries that were confirmed: all before the first failure."""
        confirmed: list[str] = []
        for entry in entries:
            try:
                await self._publish(entry)
            except TransientError:
                break
            confirmed.append(entry.id)
        return confirmed

    async def _publish(self, entry: Entry) -> None:
        match self._box:
            case "events":
                with event_spans.sending(entry):
                    await self._event(entry)
                event_spans.tell_end(entry)
            case "submissions":
                await self._submission(entry)
            case "replies":
                await self._reply(entry)

    async def _event(self, entry: Entry) -> None:
        """Publish an event. If a queue refuses it, offer it a few more times and then give up.

        The queue's owner has limited it, and may ask for a replay. All other queues have the event,
        and waiting for one subscriber would delay everybody.
        """
        is_known = time.monotonic() < self._refusals_known_until
        for pause in _OFFER_PAUSES[:1] if is_known else _OFFER_PAUSES:
            with suppress(RefusedError):
                await self._publish_event(entry)
                return
            await asyncio.sleep(pause)
        try:
            await self._publish_event(entry)
        except RefusedError as error:
            self._refusals_known_until = time.monotonic() + _REFUSALS_KNOWN_SECONDS
            subject = "pipeline_id" if entry.is_of_pipeline else "batch_id"
            log.warning("event.refused", reason=str(error), **{subject: entry.snapshot()["id"]})

    async def _publish_event(self, entry: Entry) -> None:
        message = await self._messages.of(entry)
        await self._bus.publish(
            EVENTS_EXCHANGE,
            message.routing_key,
            message.body,
            properties=message.properties,
            headers=dict(message.headers),
        )

    async def _submission(self, entry: Entry) -> None:
        message = json.loads(entry.fields["message"])
        key, trace = submit_key(message["tenant"]), message.get("traceparent", "")
        named = {name: message[name] for name in ("batch_id", "pack") if name in message}
        with spans.span(f"send {SUBMIT_EXCHANGE}", "producer", parent=trace) as span:
            span.set(event_spans.sent_to(SUBMIT_EXCHANGE, key))
            trace = span.traceparent or trace
            await self._bus.publish(
                SUBMIT_EXCHANGE,
                key,
                json.dumps(named).encode(),
                properties={
                    "message_id": message["batch_id"],
                    "type": READY,
                    "content_type": "application/json",
                    "user_id": self._service_user,
                },
                headers={"traceparent": trace} if trace else None,
                mandatory=True,
            )

    async def _reply(self, entry: Entry) -> None:
        address = entry.fields["to"]
        try:
            await self._bus.reply(
                address,
                entry.fields["body"].encode(),
                properties={
                    "message_id": entry.fields["message_id"],
                    "type": REPLY,
                    "content_type": "application/json",
                    "correlation_id": entry.fields["correlation_id"],
                },
            )
        except (UnroutableError, RefusedError) as error:
            # Gone, full or unreadable. Waiting would delay everybody's replies.
            log.warning("reply.dropped", reason=str(error), reply_to=address)
