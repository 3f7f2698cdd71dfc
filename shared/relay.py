"""The relay: publishes what lies in an outbox, in order, and removes it after the confirm.

One relay an outbox works at a time, under a lease. It reads from the start each time, so a crash
repeats entries and never skips one; a repeat carries the same message id.
"""

import asyncio
import json
from collections import defaultdict
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain

import structlog
from cloudevents.core.bindings.rabbitmq import to_structured_event

from shared import crash
from shared.bus import Bus
from shared.errors import TransientError
from shared.events import routing_key, to_event
from shared.messages import READY
from shared.state import State
from shared.state.leases import Lease
from shared.state.outbox import Box, Entry
from shared.topology import EVENTS_EXCHANGE, SUBMIT_EXCHANGE, submit_key

log = structlog.get_logger()

_LEASE_SECONDS = 10.0
_READ = 200


class Relay:
    """Empties one outbox into the bus, for as long as it runs."""

    def __init__(self, state: State, bus: Bus, box: Box, *, holder: str, service_user: str) -> None:
        self._state = state
        self._bus = bus
        self._box: Box = box
        self._lease: Lease = state.lease(f"relay:{box}", holder, seconds=_LEASE_SECONDS)
        self._service_user = service_user

    async def run(self) -> None:
        """Relay until cancelled; a broken broker or Redis is waited out."""
        try:
            while True:
                try:
                    if await self._lease.hold():
                        await self._relay_while_held()
                    else:
                        await asyncio.sleep(_LEASE_SECONDS / 8)
                except TransientError as error:
                    log.warning("relay.waiting", box=self._box, reason=str(error))
                    await asyncio.sleep(1)
        finally:
            # It ends by itself as well.
            with suppress(TransientError):
                await asyncio.shield(self._lease.let_go())

    async def relay_some(self, *, wait_seconds: float) -> int:
        """Publish the oldest entries, waiting for one if there is none; returns how many went."""
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

    async def _relay_while_held(self) -> None:
        """`relay_some`, given up when the lease is lost: publishing may outlast it."""
        relaying = asyncio.create_task(self.relay_some(wait_seconds=_LEASE_SECONDS / 4))
        try:
            while not relaying.done() and await self._lease.hold():
                await asyncio.wait([relaying], timeout=_LEASE_SECONDS / 4)
        finally:
            relaying.cancel()
            await asyncio.gather(relaying, return_exceptions=True)
        if not relaying.cancelled():
            relaying.result()

    def _order_key(self, entry: Entry) -> str:
        return entry.snapshot()["id"] if self._box == "events" else entry.id

    async def _publish_in_order(self, entries: list[Entry]) -> list[str]:
        """The ids of those that were confirmed: all up to the first failure."""
        confirmed: list[str] = []
        for entry in entries:
            try:
                await (self._event(entry) if self._box == "events" else self._submission(entry))
            except TransientError:
                break
            confirmed.append(entry.id)
        return confirmed

    async def _event(self, entry: Entry) -> None:
        event = to_event(entry)
        message = to_structured_event(event)
        properties: dict[str, str | datetime] = {
            "message_id": event.get_id(),
            "type": event.get_type(),
            "content_type": "application/cloudevents+json; charset=utf-8",
            "correlation_id": entry.snapshot().get("correlation_id", event.get_subject() or ""),
            "timestamp": event.get_time() or datetime.now(UTC),
        }
        # The attributes once more as headers, so that bindings can match them.
        envelope = json.loads(message.body)
        headers = {f"cloudEvents_{name}": envelope[name] for name in envelope.keys() - {"data"}}
        await self._bus.publish(
            EVENTS_EXCHANGE,
            routing_key(entry),
            message.body,
            properties=properties,
            headers=headers,
        )

    async def _submission(self, entry: Entry) -> None:
        message = json.loads(entry.fields["message"])
        await self._bus.publish(
            SUBMIT_EXCHANGE,
            submit_key(message["tenant"]),
            json.dumps({"batch_id": message["batch_id"]}).encode(),
            properties={
                "message_id": message["batch_id"],
                "type": READY,
                "content_type": "application/json",
                "user_id": self._service_user,
            },
            mandatory=True,
        )
