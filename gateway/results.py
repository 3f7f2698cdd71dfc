"""A batch's results so far: while it runs, and by the same offsets after its end."""

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse

from gateway.auth import Tenant
from gateway.batches import own_batch
from gateway.dependencies import Use
from gateway.downloads import opened
from gateway.result_lines import Order, ResultLines
from gateway.route_docs import addition
from shared.errors import InvalidInputError
from shared.lifecycle import FINAL, Status

router = APIRouter()

_COUNT = {"type": "integer", "minimum": 0}
_HEADERS = {
    "x-batchyard-complete": {
        "description": "`true` once the batch has ended and no more lines will follow.",
        "schema": {"type": "string", "enum": ["true", "false"]},
    },
    "x-batchyard-returned-rows": {
        "description": "The number of lines in this answer.",
        "schema": _COUNT,
    },
    "x-batchyard-done-rows": {
        "description": "The number of requests that have a result, wherever they are in the input.",
        "schema": _COUNT,
    },
    "x-batchyard-next-offset": {
        "description": "The `offset` of the next call.",
        "schema": _COUNT,
    },
    "x-batchyard-missing-rows": {
        "description": "The number of requests from that offset on. Absent while the input is "
        "validated.",
        "schema": _COUNT,
    },
    "x-batchyard-waits-for-row": {
        "description": "With `order=input`: the first request without a result, counted from 0. "
        "No line after it is returned before its own. Absent if no request is waited for.",
        "schema": _COUNT,
    },
}


class ResultStream(StreamingResponse):
    media_type = "application/x-ndjson"


@router.get(
    "/batches/{batch_id}/results",
    response_class=ResultStream,
    responses={200: {"description": "The result lines.", "headers": _HEADERS}},
    openapi_extra=addition(
        "An addition to OpenAI's API. SDK: client.get(path, cast_to=HttpxBinaryResponseContent, "
        "options={'params': {'offset': 100}})."
    ),
)
async def read_results(
    batch_id: str,
    tenant: Tenant,
    services: Use,
    *,
    offset: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int | None, Query(ge=1)] = None,
    order: Order = "input",
) -> StreamingResponse:
    """The results so far as JSON Lines: the lines that the output and error file will have.

    `order=input` returns them in input order and stops before the first request without a result,
    even if later ones are done: `x-batchyard-waits-for-row` names it. `order=completion` returns
    every result there is, in the order in which they came, until a day after the batch's end.

    `offset` is the number of lines that you already have in this order. Continue from
    `x-batchyard-next-offset`, also after the batch has ended. If an answer breaks off, continue
    from its offset plus the whole lines received.
    """
    batch = await own_batch(services.state, tenant, batch_id)
    total = batch.number("total")
    is_planned = batch.status is not Status.VALIDATING
    if is_planned and offset > total:
        raise InvalidInputError(
            f"Invalid 'offset': the batch has {total} requests, but got {offset}.",
            param="offset",
            code="invalid_value",
        )
    lines = ResultLines(services.state, services.storage, batch, order)
    readable = await lines.end(offset)
    end = readable if limit is None else min(readable, offset + limit)
    done = batch.number("completed") + batch.number("failed")
    headers = {
        "x-batchyard-complete": str(batch.status in FINAL).lower(),
        "x-batchyard-returned-rows": str(end - offset),
        # A slice may have been committed since the batch was read.
        "x-batchyard-done-rows": str(max(done, readable - offset)),
        "x-batchyard-next-offset": str(end),
    }
    if is_planned:
        headers["x-batchyard-missing-rows"] = str(total - end)
    if is_planned and order == "input" and batch.status not in FINAL and readable < total:
        headers["x-batchyard-waits-for-row"] = str(readable)
    if end <= offset:
        return ResultStream(iter(()), headers=headers)
    chunks = lines.read(offset, end)
    return ResultStream(await opened(services, tenant, chunks), headers=headers)
