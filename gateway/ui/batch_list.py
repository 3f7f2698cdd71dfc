"""The list of batches, which stays live while it is open."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from gateway.dependencies import Services, Use
from gateway.ui.batch_rows import BatchRows, Filter, batch_rows
from gateway.ui.feed import Seen, View
from gateway.ui.live import live
from gateway.ui.pages import fragment, page
from gateway.ui.session import SignedIn

router = APIRouter()

_Words = Annotated[str, Query(max_length=100)]
_Status = Annotated[str, Query(max_length=20)]


@router.get("/batches")
async def list_batches_page(
    request: Request,
    visitor: SignedIn,
    services: Use,
    *,
    status: _Status = "",
    words: _Words = "",
    after: str | None = None,
) -> Response:
    """A tenant's batches, newest first."""
    wanted = Filter(status, words)
    found = await batch_rows(services.state, visitor.tenant, wanted, after=after)
    return page(
        request,
        "batches.html",
        visitor,
        wanted=wanted,
        found=found,
        is_first=after is None,
    )


@router.get("/batches/live")
async def watch_batches_page(
    visitor: SignedIn, services: Use, *, status: _Status = "", words: _Words = ""
) -> Response:
    """The rows of the first page again whenever they change."""
    wanted = Filter(status, words)
    view = View(
        f"batches {visitor.tenant} {wanted.status} {wanted.words}",
        visitor.tenant,
        lambda: _look(services, visitor.tenant, wanted),
    )
    return await live(services, visitor.tenant, view)


async def _look(services: Services, tenant: str, wanted: Filter) -> Seen:
    found: BatchRows = await batch_rows(services.state, tenant, wanted)
    html = fragment("_batch_rows.html", found=found, wanted=wanted, is_live=True)
    return Seen(html, found.live_ids)
