"""Sends a tenant's events again, the same bytes as the first time, into a queue of its own.

Nothing is kept about it: a request of which no end comes is sent again by its sender.
"""

import asyncio
from datetime import UTC, datetime, timedelta

import structlog
from aio_pika.abc import AbstractIncomingMessage
from pydantic import BaseModel

from shared.bus import Bus
from shared.errors import BatchyardError, InvalidInputError, TransientError
from shared.event_messages import EventMessages
from shared.messages import MESSAGE_ID, TENANT
from shared.replays import (
    REPLAYED,
    OfBatch,
    Replayed,
    ReplayedReply,
    Since,
    UnreplayedReply,
    decode_replay,
    may_receive,
)
from shared.replies import ReplyError
from shared.state import State
from shared.state.outbox import Entry

log = structlog.get_logger()

#: Batches of one answer: a message must be settled soon, and another asks for the rest.
_BATCHES = 50
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Replay:
    """Answers replay requests; of each tenant one at a time, so that none keeps others waiting."""

    def __init__(self, state: State, bus: Bus, messages: EventMessages) -> None:
        self._state = state
        self._bus = bus
        self._messages = messages
        self._busy: set[str] = set()

    async def answer(self, message: AbstractIncomingMessage) -> None:
        """Send what is asked for, and how it ended.

        Raises InvalidInputError for a request that nobody could be answered, and TransientError
        while Redis or S3 cannot be reached.
        """
        tenant = _tenant(message)
        try:
            told: BaseModel = ReplayedReply(**(await self._replay(tenant, message))._asdict())
        except InvalidInputError as error:
            told = UnreplayedReply(
                error=ReplyError(
                    code=error.code or "schema_invalid", message=str(error), param=error.param
                )
            )
        except _GoneError as error:
            log.warning("replay.dropped", reason=str(error), reply_to=message.reply_to)
            return
        try:
            await self._tell(message, told)
        except TransientError as error:
            log.warning("replay.dropped", reason=str(error), reply_to=message.reply_to)

    async def _replay(self, tenant: str, message: AbstractIncomingMessage) -> Replayed:
        wish = decode_replay(message.body)
        if await self._state.restore.is_under_way():
            raise TransientError("The index of this fleet is being made again.")
        if tenant in self._busy:
            raise InvalidInputError(
                "Another replay of this tenant is under way; ask again after its end.",
                code="replay_in_progress",
            )
        self._busy.add(tenant)
        try:
            batch_ids, next_since = await self._wanted(tenant, wish)
            histories = await self._state.events.history(batch_ids)
            own = [entries for entries in histories if _are_of(tenant, entries)]
            if isinstance(wish, OfBatch) and not own:
                raise InvalidInputError(
                    f"No events of a batch with id '{wish.batch_id}' are kept.",
                    param="batch_id",
                    code="unknown_batch",
                )
            await asyncio.gather(*(self._send(message.reply_to or "", some) for some in own))
        finally:
            self._busy.discard(tenant)
        return Replayed(len(own), sum(map(len, own)), next_since)

    async def _wanted(self, tenant: str, wish: OfBatch | Since) -> tuple[list[str], str | None]:
        if isinstance(wish, OfBatch):
            return [wish.batch_id], None
        after = (wish.since - _EPOCH) // timedelta(microseconds=1)
        changes = await self._state.events.changes(tenant, after=after, limit=_BATCHES + 1)
        page = changes[:_BATCHES]
        next_since = None
        if len(changes) > len(page):
            next_since = (_EPOCH + timedelta(microseconds=page[-1].at)).isoformat()
        return [change.batch_id for change in page], next_since

    async def _send(self, queue: str, entries: list[Entry]) -> None:
        for entry in entries:
            event = await self._messages.of(entry)
            try:
                await self._bus.publish(
                    "",
                    queue,
                    event.body,
                    properties=event.properties,
                    headers=dict(event.headers),
                    mandatory=True,
                )
            except TransientError as error:
                # No queue, a full one, or no broker: to try again here would keep others waiting.
                raise _GoneError(str(error)) from error

    async def _tell(self, message: AbstractIncomingMessage, told: BaseModel) -> None:
        await self._bus.publish(
            "",
            message.reply_to or "",
            told.model_dump_json().encode(),
            properties={
                "message_id": f"{message.message_id}.replayed",
                "type": REPLAYED,
                "content_type": "application/json",
                "correlation_id": message.correlation_id or message.message_id or "",
            },
            mandatory=True,
        )


class _GoneError(BatchyardError):
    """The queue does not take the events."""


def _tenant(message: AbstractIncomingMessage) -> str:
    tenant = message.user_id or ""
    if not TENANT.fullmatch(tenant):
        raise InvalidInputError("user_id is required: it proves the tenant.")
    if not message.message_id or not MESSAGE_ID.fullmatch(message.message_id):
        raise InvalidInputError("message_id is required, 1 to 128 of A-Z a-z 0-9 _ . : -")
    if not may_receive(tenant, message.reply_to or ""):
        raise InvalidInputError("reply_to has to be a queue of the tenant's own.")
    return tenant


def _are_of(tenant: str, entries: list[Entry]) -> bool:
    return bool(entries) and entries[0].snapshot()["tenant"] == tenant
