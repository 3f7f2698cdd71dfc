"""The page of one batch, which stays live while it is open."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.batches import own_batch
from gateway.dependencies import Services, Use
from gateway.ui.batch_view import batch_view
from gateway.ui.feed import Seen, View
from gateway.ui.live import live
from gateway.ui.pages import fragment, page
from gateway.ui.session import SignedIn, VisitedBatch, Visitor

router = APIRouter()


@router.get("/batches/{batch_id}")  # noqa: FAST003  # the dependency that gives the batch reads it
async def show_batch_page(
    request: Request, visitor: SignedIn, services: Use, batch: VisitedBatch
) -> Response:
    """Everything about one batch."""
    view = await batch_view(services, batch)
    return page(request, "batch.html", visitor, view=view)


@router.get("/batches/{batch_id}/live")  # noqa: FAST003  # as above
async def watch_batch_page(visitor: SignedIn, services: Use, batch: VisitedBatch) -> Response:
    """The changing part of the page again whenever it changes."""
    view = View(
        f"batch {batch.id} {visitor.csrf}",
        visitor.tenant,
        lambda: _look(services, visitor, batch.id),
    )
    return await live(services, visitor.tenant, view)


async def _look(services: Services, visitor: Visitor, batch_id: str) -> Seen:
    record = await own_batch(services.state, visitor.tenant, batch_id)
    view = await batch_view(services, record)
    html = fragment("_batch_live.html", view=view, visitor=visitor)
    return Seen(html, (batch_id,) if view.is_live else ())
