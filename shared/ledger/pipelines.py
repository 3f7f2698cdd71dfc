"""Pipelines in S3: what was declared, what was handed from stage to stage, and how each ended.

A handover is what became of some results of one call, or of some rows of the input: the lines that
were added to the next call, and the rows that ended between. The handovers of an edge are numbered
from 0 without gaps, and each is created once: whoever creates a number has decided what comes
there. So a repeat after a crash hands on the same bytes, whatever a template, a clock or damage
would make of the rows a second time.
"""

import hashlib
from collections.abc import AsyncGenerator
from contextlib import suppress
from itertools import pairwise
from typing import Literal

import msgspec

from shared.checksums import checksum
from shared.errors import BrokenObjectError, NotFoundError
from shared.ledger.records import decoded, encoded, read_record
from shared.storage import Storage
from shared.table.output import RowsTable

PIPELINES = "pipelines/"
#: The last line of a handover has at most so many bytes.
_TAIL_BYTES = 64 * 1024

Ending = Literal["completed", "failed", "expired", "cancelled"]


class StoredPipeline(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline as it was declared. Times are Unix seconds."""

    id: str
    tenant: str
    fingerprint: str
    created_at: int
    expires_at: int
    #: The client's declaration, and the objects of its input as they were.
    declaration: msgspec.Raw
    pinned: msgspec.Raw
    #: The same of the other tables that stages read, by stage.
    joined: dict[int, msgspec.Raw] = {}
    #: The digests of the tokenizers that stages count with, by stage.
    tokenizers: dict[int, str] = {}
    output_seconds: int = 0
    #: How long answers of a stage may be given again, by stage; none for those without a cache.
    cache_seconds: dict[int, int] = {}
    #: The table that is to be made of its rows.
    output: RowsTable | None = None


class Closing(msgspec.Struct, frozen=True):
    """That a pipeline is to end before it is through, and why."""

    at: int
    code: str = ""
    message: str = ""


class StepCount(msgspec.Struct):
    """Rows that ended at a stage: for a reason, or because it does not want them."""

    failed: int = 0
    dropped: int = 0


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How a pipeline ended, with its files; empty for one that it does not have."""

    status: Ending
    at: int
    output_file_id: str = ""
    error_file_id: str = ""
    #: The table as its record has it; empty if none was asked for, or no row came through.
    table: str = ""
    #: Rows of the input that were read, and those that came through.
    read: int = 0
    rows: int = 0
    #: By stage.
    counts: dict[int, StepCount] = {}
    #: What its event says, as JSON: the same each time that it is told.
    told: str = ""


class Decided(msgspec.Struct, frozen=True):
    """How a pipeline is about to end, from before its files are written."""

    status: Ending


class Handover(msgspec.Struct, frozen=True, kw_only=True):
    """What the last line of its object says of the sections before it, in this order."""

    number: int
    #: The slices whose results it has; of the input, the rows that were read.
    slices: list[int] = []
    read: int = 0
    #: Where its rows begin among those that the edge has handed on, and how many there are.
    first_row: int = 0
    rows: int = 0
    #: The `order` of its first row: its rows are in the order of the input.
    begins: list[int] = []
    #: By stage.
    counts: dict[int, StepCount] = {}
    #: Lengths in bytes: of the lines for the next call, of the rows with their columns, of the
    #: rows that ended, and of the digests of rows that must not come again.
    lines: int = 0
    items: int = 0
    failed: int = 0
    digests: int = 0
    checksum: str = ""
    #: Nothing comes after it, and it has no rows.
    is_last: bool = False


class Sections(msgspec.Struct, frozen=True):
    """What a handover has."""

    lines: bytes = b""
    items: bytes = b""
    failed: bytes = b""
    digests: bytes = b""


def pipeline_folder(pipeline_id: str) -> str:
    """The prefix of everything that is written about a pipeline."""
    return f"{PIPELINES}{pipeline_id}/"


def pipeline_key(pipeline_id: str) -> str:
    """The S3 key of what was declared."""
    return f"{pipeline_folder(pipeline_id)}pipeline.json"


def closing_key(pipeline_id: str, kind: Literal["cancel", "failure"]) -> str:
    """The S3 key of a pipeline's cancellation or failure."""
    return f"{pipeline_folder(pipeline_id)}{kind}.json"


def ended_key(pipeline_id: str) -> str:
    """The S3 key of a pipeline's end."""
    return f"{pipeline_folder(pipeline_id)}end.json"


def decided_key(pipeline_id: str) -> str:
    """The S3 key of how a pipeline is about to end."""
    return f"{pipeline_folder(pipeline_id)}ending.json"


def edges_folder(pipeline_id: str) -> str:
    """The prefix of all its handovers."""
    return f"{pipeline_folder(pipeline_id)}edges/"


def edge_folder(pipeline_id: str, edge: int) -> str:
    """The prefix of an edge's handovers."""
    return f"{edges_folder(pipeline_id)}{edge:02d}/"


def tokenizer_key(pipeline_id: str, digest: str) -> str:
    """The S3 key of a tokenizer's file, which is named by its SHA-256."""
    return f"{edges_folder(pipeline_id)}tokenizer-{digest}.json"


async def write_tokenizer(storage: Storage, pipeline_id: str, body: bytes) -> str:
    """Keep the tokenizer's file; returns its digest."""
    digest = hashlib.sha256(body).hexdigest()
    await storage.create(tokenizer_key(pipeline_id, digest), body)
    return digest


async def read_tokenizer(storage: Storage, pipeline_id: str, digest: str) -> bytes:
    """The tokenizer's file. Raises BrokenObjectError, also if it is gone."""
    key = tokenizer_key(pipeline_id, digest)
    try:
        body = await storage.get(key)
    except NotFoundError as error:
        raise BrokenObjectError(key, "it is gone") from error
    if hashlib.sha256(body).hexdigest() != digest:
        raise BrokenObjectError(key, "its bytes are not those that were written")
    return body


def handover_key(pipeline_id: str, edge: int, number: int) -> str:
    """The S3 key of a handover."""
    return f"{edge_folder(pipeline_id, edge)}{number:08d}.jsonl"


def record_fields(stored: StoredPipeline) -> dict[str, str | int]:
    """The fields that a new pipeline's record in Redis has."""
    return {
        "fingerprint": stored.fingerprint,
        "expires_at": stored.expires_at,
        "declaration": bytes(stored.declaration).decode(),
    }


def closing_fields(closing: Closing, *, fails: bool) -> dict[str, str | int]:
    """The fields that a record in Redis has of it."""
    if fails:
        return {"error_code": closing.code, "error": closing.message, "failing_at": closing.at}
    return {"cancelling_at": closing.at}


def ended_fields(ended: Ended) -> dict[str, str | int]:
    """The fields that a record in Redis has of the end."""
    table: dict[str, str | int] = {"table": ended.table} if ended.table else {}
    return table | {
        "status": ended.status,
        "output_file_id": ended.output_file_id,
        "error_file_id": ended.error_file_id,
        "read": ended.read,
        "rows": ended.rows,
        "counts": msgspec.json.encode(ended.counts).decode(),
    }


async def decided(storage: Storage, pipeline_id: str, status: Ending) -> Ending:
    """How the pipeline ends: as this says, unless another ending was decided before.

    What its files are, and where, follows from it. Raises TransientError.
    """
    key = decided_key(pipeline_id)
    if not await storage.create(key, encoded(Decided(status))):
        with suppress(BrokenObjectError):
            return (await read_record(storage, key, Decided)).status
    return status


async def create_handover(
    storage: Storage, pipeline_id: str, edge: int, handover: Handover, sections: Sections
) -> bool:
    """Create the handover. Returns False if there is one with its number already."""
    body = sections.lines + sections.items + sections.failed + sections.digests
    whole = msgspec.structs.replace(
        handover,
        lines=len(sections.lines),
        items=len(sections.items),
        failed=len(sections.failed),
        digests=len(sections.digests),
        checksum=checksum(body),
    )
    key = handover_key(pipeline_id, edge, handover.number)
    return await storage.put_once(key, body + b"\n" + encoded(whole)) is not None


async def read_handover(
    storage: Storage, pipeline_id: str, edge: int, number: int
) -> tuple[Handover, Sections]:
    """The handover and its sections. Raises BrokenObjectError, also if it is gone."""
    key = handover_key(pipeline_id, edge, number)
    try:
        body = await storage.get(key)
    except NotFoundError as error:
        raise BrokenObjectError(key, "it is gone") from error
    end = body.rfind(b"\n")
    handover = decoded(key, body[end + 1 :], Handover)
    if checksum(body[:end]) != handover.checksum or handover.number != number:
        raise BrokenObjectError(key, "its bytes are not those that were written")
    places = [0]
    for size in (handover.lines, handover.items, handover.failed, handover.digests):
        places.append(places[-1] + size)
    return handover, Sections(*(body[a:b] for a, b in pairwise(places)))


async def read_tail(storage: Storage, key: str, size: int) -> Handover:
    """What the last line of a handover of this size says. Raises as `read_handover`."""
    body = await storage.get(key, start=max(0, size - _TAIL_BYTES), end=size)
    return decoded(key, body[body.rfind(b"\n") + 1 :], Handover)


async def tails(storage: Storage, pipeline_id: str, edge: int) -> AsyncGenerator[Handover, None]:
    """The handovers of an edge in order, by their last lines.

    Raises BrokenObjectError for one that is damaged, or missing before another.
    """
    number = 0
    async for page in storage.pages(edge_folder(pipeline_id, edge)):
        for one in page:
            key = handover_key(pipeline_id, edge, number)
            if one.key != key:
                raise BrokenObjectError(key, "it is gone")
            handover = await read_tail(storage, one.key, one.size)
            if handover.number != number:
                raise BrokenObjectError(key, "it is another handover")
            yield handover
            number += 1
