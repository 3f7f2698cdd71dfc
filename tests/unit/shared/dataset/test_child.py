"""The processes that handle a tenant's data end when nobody wants more of them."""

import asyncio

import msgspec

from shared.dataset.dataset import Dataset, PinnedDataset, Source
from shared.dataset.frames import Job
from shared.dataset.rendering import rendered

_ROWS = b'{"text":"a row"}\n' * 60_000


async def _read(_: Source, start: int, end: int) -> bytes:
    return _ROWS[start:end]


def _job() -> Job:
    template = {"model": "m", "prompt": "{{ text }}" * 20}
    dataset = Dataset(objects="s3://bucket/rows.jsonl", template=template)
    source = Source("rows", "bucket", "rows.jsonl", "etag", len(_ROWS), "jsonl")
    pinned = PinnedDataset(msgspec.Raw(dataset.model_dump_json().encode()), [source])
    return Job(pinned, "/v1/completions", 1_000_000)


async def test_one_of_which_much_is_unread_ends_with_its_reader() -> None:
    said = rendered(_job(), _read)
    assert await anext(said)
    # Until its pipe is full, and what reads it for us holds no more.
    await asyncio.sleep(1)

    await asyncio.wait_for(said.aclose(), 60)
