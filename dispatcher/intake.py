"""Messages from the bus become batches: one function a message type, one table that acks.

A delivery is settled within milliseconds of its durable effect; no work waits in the broker.
"""

import json
import time
from typing import Any

import msgspec
import stamina
import structlog
from aio_pika.abc import AbstractIncomingMessage

from shared import crash, ids, messages
from shared.bus import Bus
from shared.errors import (
    CallerError,
    ConflictError,
    InvalidInputError,
    NotFoundError,
    TransientError,
)
from shared.messages import (
    MESSAGE_ID,
    TENANT,
    InlineInput,
    S3Input,
    Submission,
    decode_submission,
    fingerprint,
    window_seconds,
)
from shared.openai import ENDPOINTS
from shared.state import State
from shared.storage import Storage
from shared.submission import Manifest, accept, read_manifest

log = structlog.get_logger()

#: A message is kept this long while Redis or S3 is away. The broker takes it back after 30 minutes.
_PATIENCE_SECONDS = 600.0
_LONGEST_WAIT_SECONDS = 5.0


class UnanswerableError(CallerError):
    """A message that cannot even be answered; it goes to the dead letters."""


class Intake:
    """Takes batch messages; safe to run in many processes at once."""

    def __init__(
        self,
        state: State,
        storage: Storage,
        bus: Bus,
        *,
        service_user: str,
        tenant_prefix: str,
    ) -> None:
        self._state = state
        self._storage = storage
        self._bus = bus
        self._service_user = service_user
        self._tenant_prefix = tenant_prefix

    async def take(self, message: AbstractIncomingMessage) -> None:
        """Handle one delivery and settle it; the only place that acks or rejects."""
        fields = {
            "message_id": message.message_id,
            "type": message.type,
            "user": message.user_id,
        }
        crash.point("intake.delivered")
        try:
            await self._handle_patiently(message)
        except UnanswerableError as error:
            log.error(  # noqa: TRY400  # the reason says it all
                "message.dead", reason=str(error), **fields
            )
            await message.reject(requeue=False)
        except CallerError as error:
            log.info("message.rejected", reason=str(error), **fields)
            await self._reply(message, _rejected(error))
            await message.ack()
        except TransientError as error:
            # Back to the queue's head, counted towards its delivery limit.
            log.warning("message.delayed", reason=str(error), **fields)
            await message.reject(requeue=True)
        except Exception:  # the loop must outlive a bug; the delivery limit bounds the repeats
            log.exception("message.broke", **fields)
            await message.reject(requeue=True)
        else:
            crash.point("intake.handled")
            await message.ack()
            crash.point("intake.acknowledged")

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
        match message.type:
            case messages.READY:
                await self._ready(message)
            case messages.SUBMIT:
                await self._submit(message)
            case other:
                raise UnanswerableError(f"There is no message type '{other}'.")

    async def _ready(self, message: AbstractIncomingMessage) -> None:
        if message.user_id != self._service_user:
            raise UnanswerableError(f"{messages.READY} comes from the gateway only.")
        try:
            batch_id = str(json.loads(message.body)["batch_id"])
        except (ValueError, KeyError, TypeError):
            raise UnanswerableError("The body names no batch.") from None
        try:
            await self._state.batches.get(batch_id)
        except NotFoundError:
            # The record was lost; what the manifest says is enough to make it again.
            await accept(self._state, self._storage, await read_manifest(self._storage, batch_id))
        await self._state.ring("dispatcher")

    async def _submit(self, message: AbstractIncomingMessage) -> None:
        tenant = message.user_id or ""
        if not TENANT.fullmatch(tenant):
            raise UnanswerableError("user_id is required: it proves the tenant.")
        if not message.message_id or not MESSAGE_ID.fullmatch(message.message_id):
            raise UnanswerableError("message_id is required, 1 to 128 of A-Z a-z 0-9 _ . : -")
        submission = decode_submission(message.body, content_encoding=message.content_encoding)
        batch_id = ids.batch_id(tenant, message.message_id)
        try:
            known = await read_manifest(self._storage, batch_id)
        except NotFoundError:
            manifest = await self._manifest(tenant, message, submission)
        else:
            # A repeat: by now the input may be gone or `not_after` past, and that changes nothing.
            manifest = msgspec.structs.replace(known, fingerprint=fingerprint(submission))
        accepted = await accept(self._state, self._storage, manifest)
        record = await self._state.batches.get(accepted.batch_id)
        await self._reply(
            message,
            {
                "status": "accepted",
                "duplicate": accepted.is_duplicate,
                "batch": record.to_openai().model_dump(
                    mode="json",
                    include={"id", "object", "status", "created_at", "expires_at"},
                ),
            },
        )

    async def _manifest(
        self, tenant: str, message: AbstractIncomingMessage, submission: Submission
    ) -> Manifest:
        if submission.endpoint not in ENDPOINTS:
            raise InvalidInputError(
                f"endpoint: '{submission.endpoint}' is not one of {', '.join(ENDPOINTS)}.",
                param="endpoint",
                code="schema_invalid",
            )
        message_id = message.message_id or ""
        batch_id = ids.batch_id(tenant, message_id)
        created_at = int(time.time())
        expires_at = created_at + window_seconds(submission.completion_window)
        if submission.not_after is not None:
            expires_at = min(expires_at, int(submission.not_after.timestamp()))
            if expires_at <= created_at:
                raise InvalidInputError(
                    "not_after: that time has passed.",
                    param="not_after",
                    code="expired",
                )
        source = await self._source(tenant, batch_id, submission)
        return Manifest(
            id=batch_id,
            tenant=tenant,
            message_id=message_id,
            fingerprint=fingerprint(submission),
            door="bus",
            endpoint=submission.endpoint,
            completion_window=submission.completion_window,
            created_at=created_at,
            expires_at=expires_at,
            priority=submission.priority,
            metadata=json.dumps(submission.metadata) if submission.metadata else "",
            correlation_id=message.correlation_id or message_id,
            reply_to=message.reply_to or "",
            **source,
        )

    async def _source(self, tenant: str, batch_id: str, submission: Submission) -> dict[str, Any]:
        """Where the input lies, as fields of a manifest."""
        wanted = submission.input
        if isinstance(wanted, InlineInput):
            # By its content: another message under the same id must not overwrite this one's input.
            key = f"batches/{batch_id}/input-{fingerprint(submission)[:16]}.jsonl"
            lines = [request.model_dump_json() for request in wanted.requests]
            stored = await self._storage.put(key, "".join(f"{line}\n" for line in lines).encode())
            crash.point("intake.input_stored")
            return _foreign(batch_id, self._storage.bucket, key, stored.etag, stored.size)
        if isinstance(wanted, S3Input):
            prefix = self._tenant_prefix.format(tenant=tenant)
            # On the way to S3, `..` would lead out of the prefix.
            is_plain = not {".", ".."} & set(wanted.key.split("/"))
            is_own = wanted.bucket == self._storage.bucket and wanted.key.startswith(prefix)
            if not is_own or not is_plain:
                raise InvalidInputError(
                    f"input.key: only objects under '{prefix}' of bucket "
                    f"'{self._storage.bucket}' may be read.",
                    param="input.key",
                    code="schema_invalid",
                )
            try:
                found = await self._storage.stat(wanted.key)
            except NotFoundError as error:
                raise _not_found("input.key", error) from error
            if found.etag != wanted.etag.strip('"') or found.size != wanted.size:
                raise InvalidInputError(
                    "input.etag: the object is not the one that the message describes.",
                    param="input.etag",
                    code="input_changed",
                )
            return _foreign(batch_id, wanted.bucket, wanted.key, found.etag, found.size)
        try:
            file = await self._state.files.get(tenant, wanted.file_id)
        except NotFoundError as error:
            raise _not_found("input.file_id", error) from error
        if file.purpose != "batch":
            raise InvalidInputError(
                f"input.file_id: the file's purpose is '{file.purpose}', not 'batch'.",
                param="input.file_id",
                code="schema_invalid",
            )
        return {
            "input_file_id": file.id,
            "bucket": file.bucket,
            "key": file.key,
            "etag": file.etag,
            "size": file.bytes,
        }

    async def _reply(self, message: AbstractIncomingMessage, answer: dict[str, Any]) -> None:
        if not message.reply_to or not _may_reply(message.user_id or "", message.reply_to):
            return
        try:
            await self._bus.publish(
                "",
                message.reply_to,
                json.dumps(answer).encode(),
                properties={
                    "message_id": f"{message.message_id}.reply",
                    "type": "batch.reply.v1",
                    "content_type": "application/json",
                    "correlation_id": message.correlation_id or message.message_id or "",
                },
                mandatory=True,
            )
        except TransientError as error:
            # The state can be asked for, and comes as an event.
            log.warning("reply.dropped", reason=str(error), reply_to=message.reply_to)


def _foreign(batch_id: str, bucket: str, key: str, etag: str, size: int) -> dict[str, Any]:
    return {
        "input_file_id": ids.input_file_id(batch_id),
        "bucket": bucket,
        "key": key,
        "etag": etag,
        "size": size,
        "is_foreign": True,
    }


def _not_found(param: str, error: NotFoundError) -> InvalidInputError:
    return InvalidInputError(f"{param}: {error}", param=param, code="schema_invalid")


def _may_reply(tenant: str, queue: str) -> bool:
    return queue.startswith((f"reply.{tenant}.", "amq.rabbitmq.reply-to."))


def _rejected(error: CallerError) -> dict[str, Any]:
    param = getattr(error, "param", None)
    code = getattr(error, "code", None) or (
        "idempotency_conflict" if isinstance(error, ConflictError) else "schema_invalid"
    )
    return {
        "status": "rejected",
        "error": {
            "code": code,
            "message": str(error),
            "param": param,
            "type": "invalid_request_error",
        },
    }
