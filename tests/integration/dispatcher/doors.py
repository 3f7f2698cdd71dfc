"""A tenant at the broker, the intake behind it, and what adds requests to its open batches."""

import json
import os
import secrets
from dataclasses import replace
from pathlib import Path
from typing import Any

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractQueue
from aiormq.abc import ChannelFrame
from pamqp import commands as spec
from pamqp.base import Frame
from pamqp.body import ContentBody
from pamqp.header import ContentHeader
from pamqp.heartbeat import Heartbeat

from dispatcher.inputs import Inputs
from dispatcher.intake import Intake
from dispatcher.replay import Replay
from shared import ids
from shared.bus import dead_letters, topology
from shared.bus.connection import Bus
from shared.bus.dead_letters import DeadLetter
from shared.bus.event_messages import EventMessages
from shared.bus.messages import CANCEL, SUBMIT
from shared.catalog import Catalog
from shared.input.validation import Limits
from shared.input_places import InputPlaces
from shared.monitoring.trail import Trail
from shared.slicing import SliceLimits
from shared.state import State
from shared.storage import Storage
from shared.submission.additions import Additions
from shared.submission.admission import NewBatchQuota
from tests.eventually import eventually
from tests.queues import next_message

SERVICE = "the-gateway"


class Door:
    """A tenant at the broker, and the intake behind it."""

    def __init__(
        self,
        channel: AbstractChannel,
        bare: AbstractChannel,
        replies: AbstractQueue,
        tenant: str,
    ) -> None:
        self.tenant = tenant
        self._channel = channel
        self._bare = bare
        self._replies = replies
        #: Deliveries that were settled.
        self.settled: list[AbstractIncomingMessage] = []
        self.deliveries = 0

    @property
    def reply_to(self) -> str:
        return self._replies.name

    def serve(self, intake: Intake) -> Any:
        async def take(message: AbstractIncomingMessage) -> None:
            self.deliveries += 1
            await intake.take(message)
            self.settled.append(message)

        return take

    async def send(self, body: bytes, *, key: str | None = None, **properties: Any) -> str:
        """Publish; returns the id of the batch that the message stands for."""
        message_id = f"m-{secrets.token_hex(4)}"
        properties = {
            "message_id": message_id,
            "type": SUBMIT,
            "user_id": self.tenant,
            "reply_to": self._replies.name,
            "content_type": "application/json",
            "delivery_mode": aio_pika.DeliveryMode.PERSISTENT,
            **properties,
        }
        exchange = await self._channel.get_exchange(topology.SUBMIT_EXCHANGE)
        await exchange.publish(
            aio_pika.Message(body, **properties), key or f"submit.v1.{self.tenant}", mandatory=True
        )
        return ids.batch_id(self.tenant, properties["message_id"] or "")

    async def send_bare(
        self, body: bytes, *, swap: tuple[bytes, bytes] = (b"", b""), **properties: Any
    ) -> None:
        """Publish with these properties only: left to itself, the client adds a message id.

        `swap` are bytes of the frames, and what is sent instead of them.
        """
        # The interface that it has by its type lacks the queue of what is to be sent.
        channel: Any = await self._bare.get_underlay_channel()
        frames: list[Frame | ContentHeader | ContentBody | Heartbeat] = [
            spec.Basic.Publish(
                exchange=topology.SUBMIT_EXCHANGE, routing_key=f"submit.v1.{self.tenant}"
            ),
            ContentHeader(body_size=len(body), properties=spec.Basic.Properties(**properties)),
            ContentBody(body),
        ]
        frame = ChannelFrame.marshall(channel_number=channel.number, frames=frames)
        await channel.write_queue.put(replace(frame, payload=frame.payload.replace(*swap)))

    async def cancel(self, batch_id: str, *, key: str | None = None) -> None:
        """Ask for a batch's end."""
        body = json.dumps({"schema": "batch.cancel/1", "batch_id": batch_id}).encode()
        await self.send(body, key=key or f"cancel.v1.{self.tenant}", type=CANCEL)

    async def settle(self, count: int = 1) -> None:
        """Return when this many deliveries were acked or rejected."""
        await eventually(lambda: len(self.settled) >= count)

    async def reply(self) -> tuple[dict[str, Any], AbstractIncomingMessage]:
        """The next reply; waits for it, since the relay sends it."""
        message = await next_message(self._replies, 30, answer_seconds=30)
        return json.loads(message.body), message

    async def dead(self) -> DeadLetter:
        """The next dead letter; waits for it, since the broker forwards on its own."""
        queue = await self._channel.get_queue(topology.DEAD_QUEUE)
        message = await next_message(queue, 30, answer_seconds=30)
        return dead_letters.read(message, service_user=self.tenant)

    async def count(self, queue: str) -> int:
        """How many messages wait there."""
        declared = await self._channel.declare_queue(queue, passive=True)
        return declared.declaration_result.message_count or 0

    async def queue(self, name: str) -> str:
        """The name of a new queue."""
        made = await self._channel.declare_queue(f"{name}.{secrets.token_hex(4)}", exclusive=True)
        return made.name

    async def has_no_reply(self) -> bool:
        return await self._replies.get(fail=False) is None


def an_intake(
    state: State,
    storage: Storage,
    bus: Bus,
    catalog: Catalog,
    *,
    service_user: str = SERVICE,
    batches_per_hour: int = 1000,
    max_bytes: int = 1_000_000,
    places: dict[str, list[str]] | None = None,
    trail: Path | None = None,
    rows: int = 50_000,
) -> Intake:
    """An intake as the dispatcher has it, with small limits."""
    quota = NewBatchQuota(catalog, batches_per_hour, 1000, 1000)
    return Intake(
        state,
        storage,
        bus,
        service_user=service_user,
        inputs=Inputs(
            state,
            storage,
            places=InputPlaces(storage.bucket, "inbox/{tenant}/", places or {}),
            max_bytes=max_bytes,
            pauses=(),
        ),
        quota=quota,
        additions=an_adder(state, storage, catalog, quota, rows=rows),
        replay=Replay(state, bus, EventMessages(storage=storage)),
        trail=Trail(trail or Path(os.devnull)),
    )


def an_adder(
    state: State, storage: Storage, catalog: Catalog, quota: NewBatchQuota, *, rows: int = 50_000
) -> Additions:
    """What adds requests to open batches, which may have so many of them."""
    return Additions(
        state,
        storage,
        catalog,
        limits=Limits(rows, 50_000),
        slice_limits=SliceLimits(),
        max_input_bytes=1_000_000,
        quota=quota,
    )
