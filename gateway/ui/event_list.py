"""What happened to a tenant's batches lately, which stays live while it is open."""

from typing import NamedTuple

from fastapi import APIRouter, Request
from starlette.responses import Response

from gateway.dependencies import Services, Use
from gateway.ui.feed import Seen, View
from gateway.ui.live import live
from gateway.ui.pages import fragment, page
from gateway.ui.session import SignedIn
from gateway.ui.words import event_text

router = APIRouter()

#: Batches whose events are looked at, those that changed last; and how many events are shown.
_BATCHES, _SHOWN = 40, 100


class EventRow(NamedTuple):
    """One event."""

    at: float
    batch_id: str
    kind: str
    text: str


@router.get("/events")
async def show_events_page(request: Request, visitor: SignedIn, services: Use) -> Response:
    """The newest events of the tenant's batches."""
    return page(request, "events.html", visitor, rows=await _rows(services, visitor.tenant))


@router.get("/events/live")
async def watch_events_page(visitor: SignedIn, services: Use) -> Response:
    """The events again whenever there is a new one."""
    tenant = visitor.tenant

    async def look() -> Seen:
        rows = await _rows(services, tenant)
        return Seen(fragment("_events.html", rows=rows, is_live=True))

    return await live(services, tenant, View(f"events {tenant}", tenant, look, 3600.0))


async def _rows(services: Services, tenant: str) -> list[EventRow]:
    state = services.state
    records, _ = await state.batches.page(tenant, after=None, limit=_BATCHES, changed_after=0)
    histories = await state.events.history([record.id for record in records])
    rows = [
        EventRow(
            int(event.fields["at_ms"]) / 1000,
            record.id,
            event.fields["type"],
            event_text(event.fields["type"]),
        )
        for record, events in zip(records, histories, strict=True)
        for event in events
    ]
    return sorted(rows, key=lambda row: row.at, reverse=True)[:_SHOWN]
