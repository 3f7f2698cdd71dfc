"""Sends a tenant's events again, with the same bytes as before, into a queue of the tenant.

Replays are not recorded. If the last message does not arrive, the tenant asks again.
"""

import asyncio
from datetime import UTC, datetime, timedelta

import structlog
from pydantic import BaseModel

from dispatcher.envelope import Envelope
from dispatcher.replies import address_of
from shared.bus.connection import Bus
from shared.bus.event_messages import EventMessages
from shared.bus.messages import Reason, RejectedError
from shared.bus.replays import REPLAYED, OfBatch, ReplayedReply, Since
from shared.bus.replies import RejectedReply
from shared.errors import BatchyardError, TransientError
from shared.state import State
from shared.state.outbox import Entry

log = structlog.get_logger()

#: Batches in one answer. A message must be settled soon, so another one asks for the rest.
_BATCHES = 50
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Replay:
    """Answers replay requests, one at a time for each tenant, so that none keeps others waiting."""

    def __init__(self, state: State, bus: Bus, messages: EventMessages) -> None:
        self._state = state
        self._bus = bus
        self._messages = messages
        self._busy: set[str] = set()

    async def answer(self, envelope: Envelope, body: bytes, request: OfBatch | Since) -> None:
        """Send the events asked for, and then a last message that says so.

        Raises RejectedError if nothing can be sent, and TransientError while Redis or S3 is away.
        """
        try:
            replayed = await self._replay(envelope, request)
        except _GoneError as error:
            log.warning("replay.dropped", reason=str(error), reply_to=envelope.reply_to)
        else:
            await self._reply(envelope, body, replayed)

    async def refuse(self, envelope: Envelope, body: bytes, error: RejectedError) -> None:
        """Say why nothing was sent, if the sender can be answered."""
        await self._reply(envelope, body, RejectedReply.of(error))

    async def _replay(self, envelope: Envelope, request: OfBatch | Since) -> ReplayedReply:
        tenant = envelope.tenant or ""
        await self._state.restore.raise_if_under_way()
        if tenant in self._busy:
            text = "Another replay of this tenant is under way; ask again after its end."
            raise RejectedError([Reason("replay_in_progress", text)])
        self._busy.add(tenant)
        try:
            batch_ids, next_since = await self._wanted(tenant, request)
            histories = await self._state.events.history(batch_ids)
            # A rebuild may have begun since, while this waited for Redis, and lacks some of them.
            await self._state.restore.raise_if_under_way()
            own = [entries for entries in histories if _are_of(tenant, entries)]
            if isinstance(request, OfBatch) and not own:
                text = f"No events of a batch with id '{request.batch_id}' are kept."
                raise RejectedError([Reason("unknown_batch", text, "batch_id")])
            await asyncio.gather(*(self._send(envelope.reply_to or "", some) for some in own))
        finally:
            self._busy.discard(tenant)
        return ReplayedReply(batches=len(own), events=sum(map(len, own)), next_since=next_since)

    async def _wanted(self, tenant: str, request: OfBatch | Since) -> tuple[list[str], str | None]:
        if isinstance(request, OfBatch):
            return [request.batch_id], None
        after = (request.since - _EPOCH) // timedelta(microseconds=1)
        changes = await self._state.events.changes(tenant, after=after, limit=_BATCHES + 1)
        page = changes[:_BATCHES]
        next_since = None
        if len(changes) > len(page):
            next_since = (_EPOCH + timedelta(microseconds=page[-1].at)).isoformat()
        return [change.batch_id for change in page], next_since

    async def _send(self, address: str, entries: list[Entry]) -> None:
        for entry in entries:
            event = await self._messages.of(entry)
            try:
                await self._bus.reply(
                    address,
                    event.body,
                    properties=event.properties,
                    headers=dict(event.headers),
                )
            except TransientError as error:
                # The queue or the broker is gone or full. Retrying would keep others waiting.
                raise _GoneError(str(error)) from error

    async def _reply(self, envelope: Envelope, body: bytes, answer: BaseModel) -> None:
        if (address := address_of(envelope, body)) is None:
            return
        try:
            await self._bus.reply(
                address["to"],
                answer.model_dump_json().encode(),
                properties={
                    "message_id": address["message_id"],
                    "type": REPLAYED,
                    "content_type": "application/json",
                    "correlation_id": address["correlation_id"],
                },
            )
        except TransientError as error:
            log.warning("replay.dropped", reason=str(error), reply_to=envelope.reply_to)


class _GoneError(BatchyardError):
    """The queue does not accept the events."""


def _are_of(tenant: str, entries: list[Entry]) -> bool:
    return bool(entries) and entries[0].snapshot()["tenant"] == tenant
