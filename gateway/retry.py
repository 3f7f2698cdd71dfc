"""Retries an ended batch: a new batch of the requests that failed or never ran."""

import json
import time
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request

from gateway.auth import Tenant
from gateway.batches import own_batch
from gateway.bodies import read_optional_body
from gateway.dependencies import Services, Use
from gateway.fields import require_one_of, require_small
from gateway.limits import reserve_batch
from gateway.retry_input import retry_input
from gateway.retry_rules import RetryBatch, fingerprint, linked_metadata
from gateway.route_docs import addition, json_body
from gateway.traces import trace_of
from shared import crash, ids
from shared.bus.messages import window_seconds
from shared.errors import BrokenObjectError, ConflictError, NotFoundError
from shared.ledger.manifests import Manifest
from shared.ledger.packs import read_manifest
from shared.lifecycle import FINAL
from shared.openai.shapes import Batch
from shared.state import BatchRecord, FileRecord
from shared.submission.accept import accept

router = APIRouter()


@router.post(
    "/batches/{batch_id}/retry",
    openapi_extra=json_body(RetryBatch, is_required=False)
    | addition(
        "An addition to OpenAI's API. SDK: client.post(path, cast_to=Batch, "
        "body={'rows': 'failed'}); the body may be left out."
    ),
)
async def retry_batch(request: Request, batch_id: str, tenant: Tenant, services: Use) -> Batch:
    """Run the failed requests of an ended batch again, as a batch of their own.

    The new batch has an input file with just these lines, and the old batch's id as `retry_of` in
    its metadata. Repeating the call returns the same batch. 409 while the batch has not ended; 400
    if nothing failed, or if its input or error file is gone. If the batch failed as a whole after
    its input was accepted, all requests are run again.
    """
    params = await read_optional_body(request, RetryBatch)
    batch = await own_batch(services.state, tenant, batch_id)
    return await retry(request, batch, services, params)


async def retry(
    request: Request, batch: BatchRecord, services: Services, params: RetryBatch
) -> Batch:
    """The new batch, or the one that an earlier call has made."""
    batch_id, tenant = batch.id, batch.tenant
    if params.completion_window is not None:
        windows = services.settings.completion_windows
        require_one_of(params.completion_window, windows, "completion_window")
    limits = services.settings.metadata_limits
    require_small(params.metadata or {}, limits)
    if batch.status not in FINAL:
        raise ConflictError(
            f"Cannot retry a batch with status '{batch.status}': wait for its end, or cancel it."
        )
    message_id = f"retry:{batch_id}:{fingerprint(params)}"
    new_id = request.state.made = ids.batch_id(tenant, message_id)
    try:
        manifest = await read_manifest(services.storage, new_id)
    except (NotFoundError, BrokenObjectError):
        # A damaged one is set aside when the same batch is made again.
        before = json.loads(batch.fields.get("metadata") or "{}") or {}
        metadata = linked_metadata(params.metadata, before, batch_id, limits)
        await reserve_batch(request, services, tenant, new_id, batch.fields["endpoint"])
        file = await retry_input(services, batch, params.rows, new_id)
        manifest = _manifest(
            services,
            batch,
            params,
            file,
            message_id=message_id,
            metadata=metadata,
            trace=trace_of(request),
        )
    await accept(services.state, services.storage, manifest)
    crash.point("gateway.retried")
    return (await own_batch(services.state, tenant, new_id)).to_openai()


def _manifest(
    services: Services,
    batch: BatchRecord,
    params: RetryBatch,
    file: FileRecord,
    *,
    message_id: str,
    metadata: dict[str, str],
    trace: Mapping[str, Any],
) -> Manifest:
    now = int(time.time())
    window = params.completion_window or batch.fields["completion_window"]
    return Manifest(
        id=ids.batch_id(batch.tenant, message_id),
        tenant=batch.tenant,
        message_id=message_id,
        fingerprint=fingerprint(params),
        door="http",
        endpoint=batch.fields["endpoint"],
        input_file_id=file.id,
        bucket=file.bucket,
        key=file.key,
        etag=file.etag,
        size=file.bytes,
        start=file.start,
        completion_window=window,
        created_at=now,
        expires_at=now + window_seconds(window),
        priority=batch.number("priority") if params.priority is None else params.priority,
        metadata=json.dumps(metadata),
        output_seconds=batch.number("output_seconds") or services.settings.output_seconds,
        **trace,
    )
