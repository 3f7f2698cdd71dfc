"""The buttons of a batch's page: each does what the API's call of the same name does."""

import json

from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.batch_controls import pause_batch, resume_batch
from gateway.batches import cancel_batch
from gateway.dependencies import Use
from gateway.fields import parsed
from gateway.retry import retry
from gateway.retry_rules import RetryBatch
from gateway.ui.pages import redirect
from gateway.ui.session import CheckedForm, VisitedBatch

router = APIRouter()


@router.post("/batches/{batch_id}/cancel")  # noqa: FAST003  # the dependency that gives the batch reads it
async def cancel_from_page(batch: VisitedBatch, services: Use, form: CheckedForm) -> Response:
    """Cancel the batch."""
    del form
    await cancel_batch(batch, services)
    return _to(batch.id)


@router.post("/batches/{batch_id}/pause")  # noqa: FAST003  # as above
async def pause_from_page(batch: VisitedBatch, services: Use, form: CheckedForm) -> Response:
    """Pause the batch."""
    del form
    await pause_batch(batch, services)
    return _to(batch.id)


@router.post("/batches/{batch_id}/resume")  # noqa: FAST003  # as above
async def resume_from_page(batch: VisitedBatch, services: Use, form: CheckedForm) -> Response:
    """Let the batch continue."""
    del form
    await resume_batch(batch, services)
    return _to(batch.id)


@router.post("/batches/{batch_id}/retry")  # noqa: FAST003  # as above
async def retry_from_page(
    request: Request, batch: VisitedBatch, services: Use, form: CheckedForm
) -> Response:
    """Make a new batch of what failed, and show it."""
    params = parsed(json.dumps({"rows": form.get("rows", "all")}).encode(), RetryBatch)
    return _to((await retry(request, batch, services, params)).id)


def _to(batch_id: str) -> Response:
    return redirect(f"/ui/batches/{batch_id}")
