"""A batch's results as far as they go: while it runs, and by the same offsets after its end."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import StreamingResponse

from gateway.auth import Tenant
from gateway.batches import own_batch
from gateway.dependencies import Use
from gateway.result_lines import Order, ResultLines
from shared.errors import InvalidInputError
from shared.lifecycle import FINAL, Status

router = APIRouter()

_HEADERS = {
    "x-batchyard-complete": {
        "description": "`true` once the batch has ended: nothing more will come",
        "schema": {"type": "string", "enum": ["true", "false"]},
    },
    "x-batchyard-next-offset": {
        "description": "the offset to go on from",
        "schema": {"type": "integer"},
    },
    "x-batchyard-missing-rows": {
        "description": "requests after that offset; not there while the input is validated",
        "schema": {"type": "integer"},
    },
}


class ResultStream(StreamingResponse):
    media_type = "application/x-ndjson"


@router.get(
    "/batches/{batch_id}/results",
    response_class=ResultStream,
    responses={200: {"description": "result lines", "headers": _HEADERS}},
    openapi_extra={
        "x-batchyard": "An addition to OpenAI's API. SDK: client.get(path, "
        "cast_to=HttpxBinaryResponseContent, options={'params': {'offset': 100}})."
    },
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
    """The result lines there are, as JSON Lines: just those of the output and error file to come.

    `offset` is how many lines one has already, and counts within one `order`. `input` gives the
    results in input order up to the first request that has none. `completion` gives all that there
    are, in the order in which they came; it can be read until a day after the batch's end. Read on
    from `x-batchyard-next-offset`, or after a broken answer from the offset plus the whole lines
    received, also after the batch has ended.
    """
    batch = await own_batch(services.state, tenant, batch_id)
    total = batch.number("total")
    if batch.status is not Status.VALIDATING and offset > total:
        raise InvalidInputError(
            f"Invalid 'offset': the batch has {total} requests, but got {offset}.",
            param="offset",
            code="invalid_value",
        )
    lines = ResultLines(services.state, services.storage, batch, order)
    end = await lines.end(offset)
    if limit is not None:
        end = min(end, offset + limit)
    headers = {
        "x-batchyard-complete": str(batch.status in FINAL).lower(),
        "x-batchyard-next-offset": str(end),
    }
    if batch.status is not Status.VALIDATING:
        headers["x-batchyard-missing-rows"] = str(total - end)
    if end <= offset:
        return ResultStream(iter(()), headers=headers)
    chunks = lines.read(offset, end)
    # Errors have to come before the answer's first byte.
    return ResultStream(_chained(await anext(chunks, b""), chunks), headers=headers)


async def _chained(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    async with aclosing(rest):
        yield first
        async for chunk in rest:
            yield chunk
