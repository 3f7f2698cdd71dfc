"""A batch's events as a stream over HTTP, for clients that would otherwise poll."""

from typing import Annotated

from fastapi import APIRouter, Header, Response
from fastapi.responses import StreamingResponse

from gateway.auth import OwnBatch
from gateway.dependencies import Use
from gateway.limits import limits_of
from gateway.route_docs import addition
from shared.lifecycle import FINAL

router = APIRouter()

#: Without these, proxies hold events back to send several at once.
STREAM_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
_MAX_DIGITS = 15


class EventStream(StreamingResponse):
    """Not FastAPI's class for such streams, which would allow no other answer, 204 for example."""

    media_type = "text/event-stream"


@router.get(
    "/batches/{batch_id}/events",  # noqa: FAST003  # the dependency that gives the batch reads it
    response_class=EventStream,
    responses={204: {"description": "The batch has ended, and its last event was seen."}},
    openapi_extra=addition(
        "An addition to OpenAI's API. SDK: client.get(path, cast_to=Batch, stream=True, "
        "stream_cls=Stream[Batch])."
    ),
)
async def watch_batch(
    batch: OwnBatch,
    services: Use,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Server-sent events: the batch's state at once, then each change, up to the batch's end.

    Each event is named as on the bus and holds the whole batch with `type`, `sequence`, `paused`
    and `priority`, and `tokens_per_second` and `remaining_seconds` while it runs. The first event
    is named after the one that announced the batch's status. The id is the sequence number; with
    `Last-Event-ID` only newer events are sent. A slow reader gets the newest state and may miss
    those before it. Comments keep the connection open. The stream ends after the last event.
    """
    newest = batch.number("sequence")
    seen = _sequence(last_event_id)
    if seen > newest:
        # Not a number of this batch, so it is ignored.
        seen = -1
    if batch.status in FINAL and seen == newest:
        # The only answer after which browsers do not reconnect.
        return Response(status_code=204)
    limit = (await limits_of(services, batch.tenant)).event_streams or 0
    place = await services.open_streams.take(batch.tenant, limit=limit)
    frames = services.watchers.watch(batch.id, seen=seen)
    return EventStream(services.open_streams.counted(place, frames), headers=STREAM_HEADERS)


def _sequence(text: str | None) -> int:
    is_number = text is not None and text.isascii() and text.isdigit() and len(text) < _MAX_DIGITS
    return int(text) if text and is_number else -1
