"""A batch's events as a stream over HTTP, for those who would rather wait than ask again."""

from typing import Annotated

from fastapi import APIRouter, Header, Response
from fastapi.responses import StreamingResponse

from gateway.auth import OwnBatch
from gateway.dependencies import Use
from shared.lifecycle import FINAL

router = APIRouter()

#: Proxies would keep events back to send several at once.
_HEADERS = {"cache-control": "no-cache", "x-accel-buffering": "no"}
_MOST_DIGITS = 15


class EventStream(StreamingResponse):
    """FastAPI's own class of this kind would take the call over, with its answers 204 and 404."""

    media_type = "text/event-stream"


@router.get(
    "/batches/{batch_id}/events",  # noqa: FAST003  # what gives the batch takes it
    response_class=EventStream,
    responses={204: {"description": "The batch has ended, and its last event was seen."}},
    openapi_extra={
        "x-batchyard": "An addition to OpenAI's API. SDK: client.get(path, cast_to=Batch, "
        "stream=True, stream_cls=Stream[Batch])."
    },
)
async def watch_batch(
    batch: OwnBatch,
    services: Use,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Server-sent events: the batch's state at once, at each change, and to its end.

    Each event holds the whole batch with `type`, `sequence`, `paused`, `priority`, and while it
    runs `tokens_per_second` and `remaining_seconds`. Its id is the sequence number: with
    `Last-Event-ID` only newer ones come. A reader that is slow gets the newest state and not all
    between. Comments are signs of life. The stream ends after the batch's last event.
    """
    newest = batch.number("sequence")
    seen = _sequence(last_event_id)
    if seen > newest:
        # No number of this batch's: as if there were none.
        seen = -1
    if batch.status in FINAL and seen == newest:
        # The only answer after which browsers do not come back.
        return Response(status_code=204)
    return EventStream(services.watchers.watch(batch.id, seen=seen), headers=_HEADERS)


def _sequence(text: str | None) -> int:
    is_number = text is not None and text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS
    return int(text) if text and is_number else -1
