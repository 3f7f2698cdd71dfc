"""Messages that submit batches."""

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from dispatcher.envelope import Envelope, malformed, unauthorised
from dispatcher.inputs import Inputs
from dispatcher.packing import InlineBatch, Packer
from dispatcher.ready import find_manifest
from dispatcher.replies import address_of
from shared import ids
from shared.answer_cache import cache_seconds
from shared.bus.messages import (
    DatasetInput,
    FileInput,
    InlineInput,
    OpenInput,
    Reason,
    RejectedError,
    S3Input,
    Submission,
    decode_submission,
    fingerprint,
    window_seconds,
)
from shared.errors import ConflictError, InvalidInputError
from shared.ledger.manifests import Manifest
from shared.lifecycle import Status
from shared.openai.endpoints import ENDPOINTS
from shared.state import RateStatus, State
from shared.storage import Storage
from shared.submission.accept import accept, accept_known
from shared.submission.admission import NewBatchQuota, Reached, refusal_text
from shared.submission.opening import open_source, require_model, start_open
from shared.tracing import spans


class Submissions:
    """Makes batches from messages, or finds the batches that they made before."""

    def __init__(
        self,
        state: State,
        storage: Storage,
        *,
        inputs: Inputs,
        quota: NewBatchQuota,
        packer: Packer,
        cache_seconds: int,
    ) -> None:
        """Answers may be given again for `cache_seconds` at most."""
        self._state = state
        self._storage = storage
        self._inputs = inputs
        self._quota = quota
        self._packer = packer
        self._cache_seconds = cache_seconds

    async def take(self, envelope: Envelope, body: bytes, *, is_suspect: bool) -> None:
        """Make the batch, with the answer beside it; a suspect message gets a pack of its own.

        Raises RejectedError, CrowdedError, and TransientError while Redis or S3 is away.
        """
        denials, reasons = [*unauthorised(envelope)], [*malformed(envelope)]
        try:
            submission = decode_submission(body, content_encoding=envelope.text("content_encoding"))
        except RejectedError as error:
            found = [*denials, *reasons, *error.reasons]
            raise RejectedError(found, is_dead=error.is_dead) from error
        unservable_now = unservable(submission, now=int(time.time()))
        if denials or envelope.tenant is None:
            raise RejectedError([*denials, *reasons, *unservable_now], is_dead=True)
        reply = address_of(envelope, body)
        if isinstance(submission.input, InlineInput) and not (reasons or unservable_now):
            source = {**self._inputs.unplaced(), **self._inputs.table(envelope.tenant, submission)}
            manifest = _manifest(envelope, submission, source, self._cache_seconds)
            batch = InlineBatch(manifest, _lines(submission.input), reply)
            # Parsed, a message may take many times its memory, and many of them wait.
            del submission
            make = self._packer.make_alone if is_suspect else self._packer.make
            await make(batch)
            return
        try:
            await self._accept(envelope, submission, reasons, reply)
        except ConflictError as error:
            reason = Reason("idempotency_conflict", str(error), "message_id")
            raise RejectedError([reason]) from error

    async def _accept(
        self,
        envelope: Envelope,
        submission: Submission,
        reasons: Sequence[Reason],
        reply: Mapping[str, str] | None,
    ) -> None:
        """Make a batch whose input is elsewhere, or meet the one that the message has made.

        `reasons` are what is wrong with the envelope. Raises RejectedError with them and all that
        is found besides, and ConflictError.
        """
        batch_id = _batch_id(envelope)
        # A lookup in S3 is expensive, and a batch unknown to Redis is almost always new.
        if await self._state.batches.exists(batch_id):
            if reasons:
                raise RejectedError(reasons)
            # A known batch stays valid even if its input is gone or `not_after` has passed.
            await accept_known(
                self._state, batch_id, envelope.message_id, fingerprint(submission), reply
            )
            return
        try:
            source = await self._source(envelope, submission, reasons)
            manifest = _manifest(envelope, submission, source, self._cache_seconds)
        except RejectedError:
            if (known := await find_manifest(self._storage, batch_id)) is None:
                raise
            if reasons:
                raise RejectedError(reasons) from None
            manifest = msgspec.structs.replace(known, fingerprint=fingerprint(submission))
        await accept(self._state, self._storage, manifest, reply=reply)
        if isinstance(submission.input, OpenInput):
            await self._start_open(batch_id)

    async def _start_open(self, batch_id: str) -> None:
        """The rounds would as well, a moment later."""
        record = await self._state.batches.get(batch_id)
        if record.status is Status.VALIDATING:
            await start_open(self._state, self._storage, self._quota.catalog, record)

    async def _source(
        self, envelope: Envelope, submission: Submission, reasons: Sequence[Reason]
    ) -> dict[str, Any]:
        """Where a new batch's input is. Raises RejectedError."""
        tenant, batch_id = envelope.tenant or "", _batch_id(envelope)
        found = [*reasons, *unservable(submission, now=int(time.time()))]
        source: dict[str, Any] = {}
        table: dict[str, Any] = {}
        try:
            table = self._inputs.table(tenant, submission)
            match submission.input:
                case FileInput() as file:
                    source = await self._inputs.find_file(tenant, file)
                # Do not look up the input of a message that is refused anyway.
                case S3Input() as wanted if not found:
                    source = await self._inputs.find_object(tenant, batch_id, wanted)
                case DatasetInput() as dataset if not found:
                    source = await self._inputs.find_dataset(tenant, batch_id, dataset)
                case OpenInput(model=model) if not found:
                    source = await self._open_source(tenant, batch_id, submission.endpoint, model)
        except RejectedError as error:
            found += error.reasons
        if found:
            raise RejectedError(found)
        outcome = await self._quota.reserve(self._state, tenant, batch_id, submission.endpoint)
        if isinstance(outcome, Reached | RateStatus):
            raise RejectedError([Reason("quota_exceeded", refusal_text(tenant, outcome))])
        return {**source, **table}

    async def _open_source(
        self, tenant: str, batch_id: str, endpoint: str, model: str
    ) -> dict[str, Any]:
        try:
            await require_model(self._state, self._quota.catalog, tenant, endpoint, model)
        except InvalidInputError as error:
            text = f"input.model: {error}"
            raise RejectedError([Reason("model_not_found", text, "input.model")]) from error
        return open_source(self._storage.bucket, tenant, batch_id, model)


def unservable(submission: Submission, *, now: int) -> list[Reason]:
    """Problems that a schema cannot express."""
    reasons = []
    if submission.cache and isinstance(submission.input, OpenInput):
        text = "cache: an open batch has none."
        reasons.append(Reason("schema_invalid", text, "cache"))
    if submission.endpoint not in ENDPOINTS:
        text = f"endpoint: '{submission.endpoint[:80]}' is not one of {', '.join(ENDPOINTS)}."
        reasons.append(Reason("schema_invalid", text, "endpoint"))
    if _expires_at(submission, now) <= now:
        reasons.append(Reason("expired", "not_after: that time has passed.", "not_after"))
    return reasons


def _manifest(
    envelope: Envelope,
    submission: Submission,
    source: Mapping[str, Any],
    most_cache_seconds: int,
) -> Manifest:
    """The manifest of a new batch over this input."""
    batch_id = _batch_id(envelope)
    created_at = int(time.time())
    traceparent, tracestate = envelope.trace
    metadata = submission.metadata
    return Manifest(
        id=batch_id,
        tenant=envelope.tenant or "",
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
        traceparent=spans.current() or traceparent,
        tracestate=tracestate,
        deliver_results=bool(submission.deliver and submission.deliver.results),
        cache_seconds=cache_seconds(submission.cache, most=most_cache_seconds),
        **{"input_file_id": ids.input_file_id(batch_id), **source},
    )


def _batch_id(envelope: Envelope) -> str:
    return ids.batch_id(envelope.tenant or "", envelope.message_id)


def _expires_at(submission: Submission, created_at: int) -> int:
    end = created_at + window_seconds(submission.completion_window)
    if submission.not_after is None:
        return end
    return min(end, int(submission.not_after.timestamp()))


def _lines(source: InlineInput) -> bytes:
    """The requests of a message as an input file."""
    return "".join(f"{request.model_dump_json()}\n" for request in source.requests).encode()
