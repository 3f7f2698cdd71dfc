"""Makes a batch of a file: upload it, see what would become of it, start it."""

import json
import secrets
from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from gateway.batch_rules import CreateBatch
from gateway.batches import new_batch, try_batch
from gateway.dependencies import Services, Use
from gateway.fields import parsed
from gateway.file_store import live_file
from gateway.files import receive_file
from gateway.ui.pages import page, redirect
from gateway.ui.session import (
    CheckedForm,
    SignedIn,
    require_csrf,
    require_same_site,
    visit,
)
from shared.openai.endpoints import ENDPOINTS
from shared.scopes import Scope
from shared.state import FileRecord

router = APIRouter()

#: Where the endpoint of the first request is looked for.
_HEAD_BYTES = 64 * 1024
_CHAT = "/v1/chat/completions"
#: Python reads no integer of thousands of digits.
_MAX_DIGITS = 15


@router.get("/new")
async def show_new_batch(request: Request, visitor: SignedIn, services: Use) -> Response:
    """The form for a file."""
    return page(request, "new.html", visitor, max_bytes=services.settings.max_upload_bytes)


@router.post("/files")
async def upload_from_page(request: Request, visitor: SignedIn, services: Use) -> Response:
    """Store the form's file, and go on to what would become of it."""
    require_same_site(request)

    def check(fields: Mapping[str, str]) -> None:
        require_csrf(visitor, fields)

    # The form has its secret before its file, so nothing is stored for another site.
    file = await receive_file(request, visitor.tenant, services, more_fields=("csrf",), check=check)
    return redirect(f"/ui/new/{file.id}")


@router.get("/new/{file_id}")
async def show_dry_run(
    request: Request,
    file_id: str,
    services: Use,
    *,
    endpoint: Annotated[str, Query(max_length=100)] = "",
    completion_window: Annotated[str, Query(max_length=10)] = "",
) -> Response:
    """What would become of a batch over the file, and the button that starts it."""
    visitor = await visit(request, services, Scope.SUBMIT)
    file = await live_file(services.state, visitor.tenant, file_id)
    chosen = endpoint or await _endpoint_of(services, file)
    window = completion_window or services.settings.completion_windows[0]
    params = _params({"input_file_id": file_id, "endpoint": chosen, "completion_window": window})
    report = await try_batch(visitor.tenant, services, params)
    return page(
        request,
        "dry_run.html",
        visitor,
        file=file,
        report=report,
        endpoints=list(ENDPOINTS),
        windows=services.settings.completion_windows,
        # Sent twice, the form makes one batch.
        idempotency_key=f"page-{secrets.token_hex(16)}",
    )


@router.post("/batches")
async def create_from_page(
    request: Request, visitor: SignedIn, services: Use, form: CheckedForm
) -> Response:
    """Start the batch, and show it."""
    batch = await new_batch(request, visitor.tenant, services, _submitted(form))
    return redirect(f"/ui/batches/{batch.id}")


def _submitted(form: Mapping[str, str]) -> CreateBatch:
    names = ("input_file_id", "endpoint", "completion_window", "idempotency_key")
    fields: dict[str, object] = {name: form[name] for name in names if name in form}
    if priority := form.get("priority"):
        is_number = priority.isdecimal() and len(priority) < _MAX_DIGITS
        fields["priority"] = int(priority) if is_number else priority
    if label := form.get("label", "").strip():
        fields["metadata"] = {"label": label}
    return _params(fields)


def _params(fields: Mapping[str, object]) -> CreateBatch:
    return parsed(json.dumps(fields).encode(), CreateBatch)


async def _endpoint_of(services: Services, file: FileRecord) -> str:
    """The endpoint that the first request names; chats if it names none."""
    end = min(file.start + file.bytes, file.start + _HEAD_BYTES)
    if not file.bytes:
        return _CHAT
    head = await services.storage.get(
        file.key, start=file.start, end=end, etag=file.etag, bucket=file.bucket
    )
    try:
        url = json.loads(head.split(b"\n", 1)[0])["url"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return _CHAT
    return url if isinstance(url, str) and url in ENDPOINTS else _CHAT
