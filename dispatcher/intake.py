"""Messages from the bus become batches: one function a message type, one table that acks.

A delivery is settled within milliseconds of its durable effect; no work waits in the broker.
"""

import asyncio
import json
import random
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import stamina
import structlog
from aio_pika.abc import AbstractIncomingMessage

from dispatcher.acks import Acks
from dispatcher.envelope import Envelope, header_bytes, malformed, unauthorised
from dispatcher.inputs import CrowdedError, Inputs
from dispatcher.packing import InlineBatch, Packer
from dispatcher.planning import Planner
from dispatcher.replay import Replay
from shared import crash, ids
from shared.bus import messages, replays
from shared.bus.connection import CONNECTION_ERRORS, Bus
from shared.bus.dead_letters import (
    DEAD,
    REPLAY,
    dead_table,
    letter_id,
    own_headers,
    replayed,
    sent_properties,
)
from shared.bus.messages import (
    FileInput,
    InlineInput,
    Reason,
    RejectedError,
    Submission,
    decode_cancellation,
    decode_submission,
    fingerprint,
    window_seconds,
)
from shared.bus.received import MAX_CORRELATION_ID, MAX_HEADER_BYTES
from shared.bus.replies import AcceptedBatch, AcceptedReply, RejectedReply, Reply
from shared.bus.topology import DEAD_EXCHANGE, DEAD_KEY
from shared.errors import (
    ConflictError,
    InvalidTransitionError,
    NotFoundError,
    TransientError,
)
from shared.ledger.commits import cancel
from shared.ledger.manifests import Manifest
from shared.ledger.packs import read_manifest
from shared.lifecycle import Status
from shared.openai.endpoints import ENDPOINTS
from shared.state import BatchRecord, Standing, State
from shared.storage import Storage
from shared.submission.accept import accept, meet
from shared.submission.admission import FullQueue, NewBatchQuota, refusal_text

log = structlog.get_logger()

T = TypeVar("T")

#: A message is kept this long while Redis or S3 is away. The broker takes it back after 30 minutes.
_PATIENCE_SECONDS = 600.0
_LONGEST_WAIT_SECONDS = 5.0
#: A message that came back so often may be what kills us: such are taken one at a time.
_SUSPECT_DELIVERIES = 3
#: In any order, so that the one that kills is not always before the same others.
_SHUFFLE_SECONDS = 0.5
#: What is said with these goes to the dead letters, also where the sender gets an answer.
_DEAD_CODES = {"bad_routing_key", "tenant_mismatch", "too_large", "unsupported_media"}
_DEAD_PARAMS = {"message_id", "type"}
_ROOT = Path(__file__).parents[1]

_Make = Callable[[InlineBatch], Awaitable[None]]


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
        replay: Replay,
        planner: Planner | None = None,
    ) -> None:
        self._replay = replay
        self._state = state
        self._storage = storage
        self._bus = bus
        self._service_user = service_user
        self._inputs = inputs
        self._quota = quota
        self._packer = Packer(state, storage, quota=quota, planner=planner)
        self._acks = Acks()
        self._one_at_a_time = asyncio.Lock()

    async def take(self, message: AbstractIncomingMessage) -> None:
        """Handle one delivery and settle it; the only place that acks or rejects."""
        deliveries = _deliveries(message)
        try:
            if deliveries <= _SUSPECT_DELIVERIES:
                try:
                    await self._handle(message)
                except TransientError:
                    await self._handle_patiently(message)
            else:
                await asyncio.sleep(random.uniform(0, _SHUFFLE_SECONDS))
                await self._handle_alone(message)
        except TransientError as error:
            log.warning("message.delayed", reason=str(error), **_fields(message))
            await self._postpone(message, deliveries)
        except Exception as error:  # noqa: BLE001  # the loop must outlive a bug; its words may quote a prompt
            await self._give_up(message, error, deliveries)
        else:
            await _settle(self._acks.ack(message))
            crash.point("intake.acknowledged")

    async def _handle_alone(self, message: AbstractIncomingMessage) -> None:
        try:
            await asyncio.wait_for(self._one_at_a_time.acquire(), _PATIENCE_SECONDS)
        except TimeoutError as error:
            raise TransientError("Other suspect messages take too long.") from error
        try:
            await self._handle_patiently(message)
        finally:
            self._one_at_a_time.release()

    async def _handle_patiently(self, message: AbstractIncomingMessage) -> None:
        """Wait here, since each return to the queue counts towards the message's delivery limit."""
        async for attempt in stamina.retry_context(
            on=TransientError,
            attempts=None,
            timeout=_PATIENCE_SECONDS,
            wait_max=_LONGEST_WAIT_SECONDS,
        ):
            with attempt:
                await self._handle(message)

    async def _handle(self, message: AbstractIncomingMessage) -> None:
        while True:
            try:
                return await self._handle_once(message)
            except CrowdedError:
                # A broker that takes no copy lets nobody else's messages in either.
                with suppress(TransientError):
                    return await self._send_to_back(message)

    async def _postpone(self, message: AbstractIncomingMessage, deliveries: int) -> None:
        """Give a message up for now; an outage does not count towards its delivery limit."""
        if deliveries <= _SUSPECT_DELIVERIES:
            with suppress(TransientError):
                await self._send_to_back(message)
                await _settle(self._acks.ack(message))
                return
        # Back to the queue's head, counted towards its delivery limit.
        await _settle(self._acks.requeue(message))

    async def _send_to_back(self, message: AbstractIncomingMessage) -> None:
        """Publish a copy behind all that wait. If we die before the ack, there are two of them."""
        envelope = self._opened(message)
        if (
            self._bus.user != self._service_user
            or header_bytes(envelope.headers) > MAX_HEADER_BYTES
        ):
            raise TransientError("A copy would not stand for the message.")
        await self._bus.publish(
            envelope.exchange,
            envelope.routing_key,
            message.body,
            properties={
                "message_id": envelope.message_id,
                "type": envelope.type,
                "content_type": envelope.text("content_type"),
                "user_id": self._bus.user,
            },
            headers={
                **own_headers(envelope.headers),
                REPLAY: {"user": envelope.user, "properties": dict(envelope.properties)},
            },
            mandatory=True,
        )

    async def _handle_once(self, message: AbstractIncomingMessage) -> None:
        envelope = self._opened(message)
        crash.point("intake.begin")
        try:
            await self._obey(envelope, message)
        except RejectedError as error:
            codes = sorted({reason.code for reason in error.reasons})
            # Not the reasons: they name fields, and who knows what somebody calls a field.
            log.info("message.rejected", codes=codes, count=error.count, **_fields(message))
            is_dead = error.is_dead or any(map(_is_dead, error.reasons))
            if is_dead or not envelope.can_be_answered:
                await self._bury(envelope, message, error)
            if envelope.can_be_answered:
                await self._refuse(envelope, message.body, error)
        crash.point("intake.done")

    async def _give_up(
        self, message: AbstractIncomingMessage, error: Exception, deliveries: int
    ) -> None:
        """A fault of ours: once more, and then to the dead letters with the place of the fault."""
        where = _place(error)
        log.error("message.broke", error=type(error).__name__, where=where, **_fields(message))
        if deliveries <= _SUSPECT_DELIVERIES:
            await _settle(self._acks.requeue(message))
            return
        text = f"The dispatcher broke on the message with a {type(error).__name__}."
        try:
            rejection = RejectedError([Reason("internal_error", text)])
            await self._bury(self._opened(message), message, rejection, where=where)
        except TransientError:
            await _settle(self._acks.requeue(message))
        except Exception as again:  # noqa: BLE001  # never settled, it would take a place for half an hour
            log.warning("message.dropped", error=type(again).__name__, where=_place(again))
            await _settle(self._acks.drop(message))
        else:
            await _settle(self._acks.ack(message))

    def _opened(self, message: AbstractIncomingMessage) -> Envelope:
        headers: dict[str, Any] = dict(message.headers)
        user, properties = message.user_id, sent_properties(message)
        # Of another user, this header says nothing.
        if user == self._service_user and isinstance(headers.get(REPLAY), dict):
            user, properties, headers = replayed(headers)
        return Envelope(
            user, message.exchange or "", message.routing_key or "", properties, headers
        )

    async def _obey(self, envelope: Envelope, message: AbstractIncomingMessage) -> None:
        body = message.body
        if envelope.type == messages.READY and envelope.user == self._service_user:
            await self._ready(body)
        elif envelope.type == messages.CANCEL:
            await self._cancel(envelope, body)
        elif envelope.type == replays.REPLAY:
            await self._replay.answer(envelope, _checked(envelope, body, replays.decode_replay))
        else:
            is_suspect = _deliveries(message) > _SUSPECT_DELIVERIES
            make = self._packer.make_alone if is_suspect else self._packer.make
            await self._submit(envelope, body, make)

    async def _ready(self, body: bytes) -> None:
        try:
            batch_id = str(json.loads(body)["batch_id"])
        except (ValueError, KeyError, TypeError):
            reason = Reason("schema_invalid", "The body names no batch.", "batch_id")
            raise RejectedError([reason], is_dead=True) from None
        if not await self._state.batches.exists(batch_id):
            # The record was lost; what the manifest says is enough to make it again.
            if (manifest := await self._first(batch_id)) is None:
                reason = Reason("unknown_batch", f"There is no batch '{batch_id}'.", "batch_id")
                raise RejectedError([reason], is_dead=True)
            await accept(self._state, self._storage, manifest)
        await self._state.ring("dispatcher")

    async def _first(self, batch_id: str) -> Manifest | None:
        """The manifest that is there for ever, if there is one."""
        try:
            return await read_manifest(self._storage, batch_id)
        except NotFoundError:
            return None

    async def _submit(self, envelope: Envelope, body: bytes, make: _Make) -> None:
        denials, reasons = [*unauthorised(envelope)], [*malformed(envelope)]
        try:
            submission = decode_submission(body, content_encoding=envelope.text("content_encoding"))
        except RejectedError as error:
            raise RejectedError(
                [*denials, *reasons, *error.reasons], is_dead=error.is_dead
            ) from error
        tenant = envelope.tenant
        if denials or tenant is None:
            raise RejectedError([*denials, *reasons, *_unservable(submission)], is_dead=True)
        reply = self._address(envelope, body) if envelope.can_be_answered else None
        found = [*reasons, *_unservable(submission)]
        if isinstance(submission.input, InlineInput) and not found:
            manifest = self._manifest(tenant, envelope, submission, self._inputs.unplaced())
            batch = InlineBatch(manifest, _lines(submission.input), reply)
            # Parsed, a message may take many times its room, and many of them wait.
            del submission
            await make(batch)
            return
        try:
            await self._accept(tenant, envelope, submission, reasons, reply)
        except ConflictError as error:
            raise RejectedError(
                [Reason("idempotency_conflict", str(error), "message_id")]
            ) from error

    async def _accept(
        self,
        tenant: str,
        envelope: Envelope,
        submission: Submission,
        reasons: list[Reason],
        reply: Mapping[str, str] | None,
    ) -> None:
        """Make a batch of what is elsewhere or wrong, or meet the one that the message has made.

        Raises RejectedError with these reasons and all that are found, and ConflictError.
        """
        batch_id = ids.batch_id(tenant, envelope.message_id)
        # A look into S3 costs most of all; what Redis does not know is almost always new.
        if await self._state.batches.exists(batch_id):
            if reasons:
                raise RejectedError(reasons)
            # By now the input may be gone or `not_after` past, and that changes nothing.
            await meet(self._state, batch_id, envelope.message_id, fingerprint(submission), reply)
            return
        try:
            source = await self._source(tenant, batch_id, submission, reasons)
            manifest = self._manifest(tenant, envelope, submission, source)
        except RejectedError:
            if (known := await self._first(batch_id)) is None:
                raise
            if reasons:
                raise RejectedError(reasons) from None
            manifest = msgspec.structs.replace(known, fingerprint=fingerprint(submission))
        await accept(self._state, self._storage, manifest, reply=reply)

    async def _source(
        self, tenant: str, batch_id: str, submission: Submission, reasons: list[Reason]
    ) -> dict[str, Any]:
        """Where a new batch's input lies. Raises RejectedError."""
        found = [*reasons, *_unservable(submission)]
        source: dict[str, Any] = {}
        # What is refused anyhow costs no lookup in S3.
        if isinstance(submission.input, FileInput) or not (
            found or isinstance(submission.input, InlineInput)
        ):
            try:
                source = await self._inputs.find(tenant, batch_id, submission.input)
            except RejectedError as error:
                found += error.reasons
        if found:
            raise RejectedError(found)
        outcome = await self._quota.reserve(self._state, tenant, batch_id, submission.endpoint)
        if isinstance(outcome, FullQueue | Standing):
            raise RejectedError([Reason("quota_exceeded", refusal_text(tenant, outcome))])
        return source

    @staticmethod
    def _manifest(
        tenant: str, envelope: Envelope, submission: Submission, source: Mapping[str, Any]
    ) -> Manifest:
        """Of a new batch with this input."""
        batch_id = ids.batch_id(tenant, envelope.message_id)
        created_at = int(time.time())
        traceparent, tracestate = envelope.trace
        metadata = submission.metadata
        return Manifest(
            id=batch_id,
            tenant=tenant,
            message_id=envelope.message_id,
            fingerprint=fingerprint(submission),
            door="bus",
            endpoint=submission.endpoint,
            completion_window=submission.completion_window,
            created_at=created_at,
            expires_at=_expires_at(submission, created_at),
            priority=submission.priority,
            metadata="" if metadata is None else json.dumps(metadata),
            correlation_id=envelope.correlation_id,
            reply_to=envelope.reply_to or "",
            traceparent=traceparent,
            tracestate=tracestate,
            deliver_results=bool(submission.deliver and submission.deliver.results),
            **{"input_file_id": ids.input_file_id(batch_id), **source},
        )

    async def _cancel(self, envelope: Envelope, body: bytes) -> None:
        wish = _checked(envelope, body, decode_cancellation)
        record = await self._own_batch(envelope.tenant, wish.batch_id)
        try:
            is_new = await cancel(self._state, self._storage, record.id)
        except InvalidTransitionError as error:
            # To ask again for what has happened is no error.
            if error.status != Status.CANCELLED:
                text = f"batch_id: Cannot cancel a batch with status '{error.status}'."
                raise RejectedError([Reason("batch_ended", text, "batch_id")]) from error
            is_new = False
        if envelope.can_be_answered:
            record = await self._state.batches.get(record.id)
            await self._reply(envelope, body, _acceptance(record, is_duplicate=not is_new))

    async def _own_batch(self, tenant: str | None, batch_id: str) -> BatchRecord:
        """The tenant's batch; another one's does not exist."""
        # Before the look: what is missing then is not there.
        await self._state.restore.raise_if_under_way()
        try:
            record = await self._state.batches.get(batch_id)
        except NotFoundError:
            record = None
        if record is None or record.tenant != tenant:
            text = f"batch_id: No batch found with id '{batch_id}'."
            raise RejectedError([Reason("unknown_batch", text, "batch_id")])
        return record

    async def _refuse(self, envelope: Envelope, body: bytes, error: RejectedError) -> None:
        if envelope.type == replays.REPLAY and envelope.has_good_id:
            await self._replay.refuse(envelope, error)
        else:
            await self._reply(envelope, body, Reply(RejectedReply.of(error)))

    async def _reply(self, envelope: Envelope, body: bytes, answer: Reply) -> None:
        await self._state.outbox.add(
            "replies", {**self._address(envelope, body), "body": answer.model_dump_json()}
        )

    @staticmethod
    def _address(envelope: Envelope, body: bytes) -> dict[str, str]:
        """Where and under which ids an answer goes."""
        if not envelope.has_good_id:
            # It stands for no batch; the answer names the dead letter.
            name = letter_id(envelope.user, envelope.routing_key, envelope.message_id, body)
        elif envelope.type == messages.CANCEL:
            # A cancellation has an id of its own, which names no batch.
            name = f"{envelope.message_id}.cancel"
        else:
            name = ids.batch_id(envelope.tenant or "", envelope.message_id)
        return {
            "to": envelope.reply_to or "",
            "message_id": f"{name}.reply",
            "correlation_id": envelope.correlation_id[:MAX_CORRELATION_ID],
        }

    async def _bury(
        self,
        envelope: Envelope,
        message: AbstractIncomingMessage,
        error: RejectedError,
        *,
        where: str | None = None,
    ) -> None:
        """Publish the message to the dead letters: `reject` would lose the reason."""
        table = dead_table(
            user=envelope.user,
            exchange=envelope.exchange,
            routing_key=envelope.routing_key,
            properties=envelope.properties,
            reasons=error.reasons,
            reason_count=error.count,
            deliveries=_deliveries(message),
            at=int(time.time()),
            where=where,
        )
        is_small = header_bytes(envelope.headers) <= MAX_HEADER_BYTES
        await self._bus.publish(
            DEAD_EXCHANGE,
            DEAD_KEY,
            message.body,
            properties={
                "message_id": letter_id(
                    envelope.user, envelope.routing_key, envelope.message_id, message.body
                ),
                "type": envelope.type,
                "content_type": envelope.text("content_type"),
                "user_id": self._bus.user,
            },
            headers={**(own_headers(envelope.headers) if is_small else {}), DEAD: table},
            mandatory=True,
        )


async def _settle(settling: Awaitable[None]) -> None:
    """Ack or reject; where the channel is gone, the broker delivers again without harm."""
    try:
        await settling
    except CONNECTION_ERRORS as error:
        log.warning("message.not_settled", error=type(error).__name__)


def _is_dead(reason: Reason) -> bool:
    # An input may be too large for us; its message was none the less a good one.
    is_of_input = (reason.param or "").startswith("input.")
    return reason.param in _DEAD_PARAMS or (reason.code in _DEAD_CODES and not is_of_input)


def _deliveries(message: AbstractIncomingMessage) -> int:
    """How often the message has been handed out, this time included."""
    if not message.redelivered:
        return 1
    count = message.headers.get("x-delivery-count")
    return count + 1 if isinstance(count, int) else 2


def _fields(message: AbstractIncomingMessage) -> dict[str, str | None]:
    return {"message_id": message.message_id, "type": message.type, "user": message.user_id}


def _place(error: Exception) -> str:
    """The innermost line of our own code that the error went through."""
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).is_relative_to(_ROOT) and ".venv" not in frame.filename
    ]
    if not own:
        return "unknown"
    path = Path(own[-1].filename).relative_to(_ROOT)
    return f"{path}:{own[-1].lineno} in {own[-1].name}"


def _checked(envelope: Envelope, body: bytes, decode: Callable[..., T]) -> T:
    """What the body says. Raises RejectedError for all that is wrong with it or its envelope."""
    reasons = [*unauthorised(envelope), *malformed(envelope)]
    try:
        wish = decode(body, content_encoding=envelope.text("content_encoding"))
    except RejectedError as error:
        raise RejectedError([*reasons, *error.reasons], is_dead=error.is_dead) from error
    if reasons:
        raise RejectedError(reasons)
    return wish


def _lines(wanted: InlineInput) -> bytes:
    """The requests of a message as an input file."""
    return "".join(f"{request.model_dump_json()}\n" for request in wanted.requests).encode()


def _unservable(submission: Submission) -> list[Reason]:
    """What a schema cannot say."""
    reasons = []
    if submission.endpoint not in ENDPOINTS:
        text = f"endpoint: '{submission.endpoint[:80]}' is not one of {', '.join(ENDPOINTS)}."
        reasons.append(Reason("schema_invalid", text, "endpoint"))
    now = int(time.time())
    if _expires_at(submission, now) <= now:
        reasons.append(Reason("expired", "not_after: that time has passed.", "not_after"))
    return reasons


def _expires_at(submission: Submission, created_at: int) -> int:
    end = created_at + window_seconds(submission.completion_window)
    if submission.not_after is None:
        return end
    return min(end, int(submission.not_after.timestamp()))


def _acceptance(record: BatchRecord, *, is_duplicate: bool) -> Reply:
    """As `accept.lua` writes it for a new batch."""
    return Reply(
        AcceptedReply(
            duplicate=is_duplicate,
            batch=AcceptedBatch(
                id=record.id,
                status=record.status,
                created_at=record.number("created_at"),
                expires_at=record.number("expires_at"),
            ),
        )
    )
