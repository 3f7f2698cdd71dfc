"""Batches as the bytes of an answer. Those of a record that has not changed are made once."""

import asyncio
from collections.abc import Sequence
from functools import lru_cache

from gateway.reasons import shown
from shared.ledger.reasons import LEFT_OUT
from shared.openai.shapes import Batch
from shared.state import BatchRecord
from shared.storage import Storage

#: Texts of records are a few kilobytes, and so are the bodies that are made of them.
_REMEMBERED = 1024


async def batch_bodies(storage: Storage, records: Sequence[BatchRecord]) -> list[bytes]:
    """What `shown` shows, as JSON. Raises TransientError."""
    if any(LEFT_OUT in record.fields for record in records):
        return list(await asyncio.gather(*(_body(storage, record) for record in records)))
    return [_remembered(record) for record in records]


def page_body(ids: Sequence[str], bodies: Sequence[bytes], *, has_more: bool) -> bytes:
    """The page of a listing with these batches, as `CursorPage` has it."""
    first, last = (f'"{ids[0]}"', f'"{ids[-1]}"') if ids else ("null", "null")
    rest = f'],"first_id":{first},"last_id":{last},"has_more":{str(has_more).lower()}}}'
    return b'{"object":"list","data":[' + b",".join(bodies) + rest.encode()


def body_of(batch: Batch) -> bytes:
    """The batch as JSON."""
    return batch.model_dump_json().encode()


async def _body(storage: Storage, record: BatchRecord) -> bytes:
    if LEFT_OUT not in record.fields:
        return _remembered(record)
    [batch] = await shown(storage, [record])
    return body_of(batch)


def _remembered(record: BatchRecord) -> bytes:
    # What is read from S3 has no text, and costs so much that its body may as well be made again.
    return _made(record.text) if record.text else body_of(record.to_openai())


@lru_cache(_REMEMBERED)
def _made(text: str) -> bytes:
    """The body of the record with this text."""
    return body_of(BatchRecord.from_text(text).to_openai())
