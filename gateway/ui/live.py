"""A page's stream of changes, counted against its tenant's limit of event streams."""

from starlette.responses import Response

from gateway.dependencies import Services
from gateway.events import STREAM_HEADERS, EventStream
from gateway.limits import limits_of
from gateway.ui.feed import View
from gateway.ui.pages import HEADERS


async def live(services: Services, tenant: str, view: View) -> Response:
    """The view now and at each change, until the page is closed. Raises LimitError."""
    limit = (await limits_of(services, tenant)).event_streams or 0
    place = await services.open_streams.take(tenant, limit=limit)
    frames = services.open_streams.counted(place, services.feed.follow(view))
    return EventStream(frames, headers={**HEADERS, **STREAM_HEADERS})
