"""Results of a batch as people read them, for the batch's own tenant alone."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from itertools import islice
from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from gateway.batch_slices import BatchSlices
from gateway.dependencies import Services, Use
from gateway.file_store import live_file
from gateway.files import download_file
from gateway.result_file import ResultFile
from gateway.result_lines import ResultLines
from gateway.ui.pages import page
from gateway.ui.row_texts import ResultRow, result_row
from gateway.ui.session import SignedIn, VisitedBatch
from shared import ids
from shared.errors import BatchyardError
from shared.ledger.parts import read_section
from shared.state import BatchRecord

router = APIRouter()

_PAGE = 20
_MAX_FAILED = 100
#: Committed slices that are searched for failed rows while the batch runs.
_SEARCHED = 200


@router.get("/batches/{batch_id}/results")  # noqa: FAST003  # the dependency that gives the batch reads it
async def show_results_page(
    request: Request,
    visitor: SignedIn,
    services: Use,
    batch: VisitedBatch,
    *,
    offset: Annotated[int, Query(ge=0, le=10**9)] = 0,
) -> Response:
    """The results so far in input order, with what was asked."""
    lines = ResultLines(services.state, services.storage, batch, "input")
    end = min(await lines.end(offset), offset + _PAGE)
    results = await _lines(lines.read(offset, end)) if end > offset else []
    asked = await _requests(services, batch, offset, end)
    rows = [_row(line, asked) for line in results]
    return page(
        request,
        "results.html",
        visitor,
        batch=batch.to_openai(),
        rows=rows,
        offset=offset,
        end=end,
        page_size=_PAGE,
    )


@router.get("/batches/{batch_id}/failed")  # noqa: FAST003  # as above
async def show_failed_page(
    request: Request, visitor: SignedIn, services: Use, batch: VisitedBatch
) -> Response:
    """The first requests that failed, with the reason of each."""
    rows = [_row(line, {}) for line in await _failed(services, batch)]
    return page(
        request,
        "failed.html",
        visitor,
        batch=batch.to_openai(),
        rows=sorted(rows, key=lambda row: row.line),
    )


@router.get("/files/{file_id}/content")
async def download_from_page(file_id: str, visitor: SignedIn, services: Use) -> Response:
    """A file's content, as the API gives it."""
    return await download_file(file_id, visitor.tenant, services)


async def _failed(services: Services, batch: BatchRecord) -> list[bytes]:
    if error_file := batch.fields.get("error_file_id"):
        file = await live_file(services.state, batch.tenant, error_file)
        found: list[bytes] = []
        async with aclosing(ResultFile(services.storage, file).lines(0)) as lines:
            async for line in lines:
                found.append(line)
                if len(found) == _MAX_FAILED:
                    break
        return found
    return await _failed_so_far(services, batch)


async def _failed_so_far(services: Services, batch: BatchRecord) -> list[bytes]:
    if "plan" not in batch.fields:
        return []
    commits = await services.state.slices.commits(batch.id, 0, limit=_SEARCHED)
    found: list[bytes] = []
    async for slice_ in BatchSlices(services.state, batch).at([index for index, _ in commits]):
        part = slice_.part
        if part is not None and part.error_bytes:
            body = await read_section(services.storage, part, part.error)
            found += body.splitlines(keepends=True)
        if len(found) >= _MAX_FAILED:
            break
    return found[:_MAX_FAILED]


async def _lines(chunks: AsyncGenerator[bytes, None]) -> list[bytes]:
    async with aclosing(chunks):
        return b"".join([chunk async for chunk in chunks]).splitlines(keepends=True)


async def _requests(
    services: Services, batch: BatchRecord, start: int, end: int
) -> Mapping[int, bytes]:
    """The input lines of rows [start, end) by row, as far as it is still known where they are."""
    found: dict[int, bytes] = {}
    if "plan" not in batch.fields or end <= start:
        return found
    try:
        async with aclosing(BatchSlices(services.state, batch).stretches_from(start)) as stretches:
            async for stretch in stretches:
                slice_ = stretch[0].slice
                if slice_.first_row >= end:
                    break
                body = await services.storage.get(
                    batch.fields["key"],
                    start=slice_.start,
                    end=slice_.end,
                    etag=batch.fields.get("etag") or None,
                    bucket=batch.fields["bucket"],
                    version_id=batch.fields.get("version_id"),
                )
                lines = (line for line in body.split(b"\n") if line.strip())
                found |= enumerate(islice(lines, end - slice_.first_row), slice_.first_row)
    except BatchyardError:
        # The input is gone or was replaced; the results are still worth a look.
        return found
    return found


def _row(line: bytes, asked: Mapping[int, bytes]) -> ResultRow:
    row = ids.row_of_result(line)
    return result_row(row + 1, line, asked.get(row))
