"""What a row of a table costs before it runs: rendered by the child process, and then checked.

python -m benchmarks.datasets [--rows N]
"""

import argparse
import asyncio
import io
import json
import time
from contextlib import aclosing

import msgspec
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from shared.dataset.dataset import PinnedDataset, Source
from shared.dataset.frames import Job
from shared.dataset.rendering import rendered
from shared.input.validation import InputCheck, Limits

_CHAT = "/v1/chat/completions"
_GROUP = 50_000
_TEMPLATE = {
    "model": "m",
    "messages": [{"role": "user", "content": "Is this friendly? {{ text }}"}],
    "max_tokens": "{{ most }}",
}


async def main() -> None:
    """Render a Parquet file from memory, then check the lines as planning does."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.datasets", description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    rows = parser.parse_args().rows
    table = _table(rows)
    dataset = {"objects": "s3://bucket/table.parquet", "template": _TEMPLATE}
    source = Source("table", "bucket", "table.parquet", "etag", len(table), "parquet")
    pinned = PinnedDataset(msgspec.Raw(json.dumps(dataset).encode()), [source])
    check = InputCheck(_CHAT, {"m": {_CHAT}}, Limits(rows=rows))
    most, rendering, checking = 0, 0.0, 0.0
    own = psutil.Process().memory_info().rss
    began = time.monotonic()

    async def read(_: Source, start: int, end: int) -> bytes:
        return table[start:end]

    async with aclosing(rendered(Job(pinned, _CHAT, rows), read)) as said:
        async for one in said:
            begun = time.process_time()
            if isinstance(one, bytes):
                check.feed(one)
            checking += time.process_time() - begun
            for child in psutil.Process().children():
                most = max(most, child.memory_info().rss)
                rendering = sum(child.cpu_times()[:2])
    print(f"rows                       {check.rows:,}")
    print(f"bytes of the table         {len(table):,}")
    print(f"rendering                  {rendering / rows * 1e6:.1f} µs of a core a row")
    print(f"checking                   {checking / rows * 1e6:.1f} µs of a core a row")
    print(f"the renderer's memory      {most / 2**20:.0f} MiB")
    grown = psutil.Process().memory_info().rss - own
    print(f"what the check grew by     {grown / 2**20:.0f} MiB")
    print(f"by the clock               {time.monotonic() - began:.0f} s")


def _table(rows: int) -> bytes:
    """Written group by group: millions of texts have no room beside each other."""
    sink = io.BytesIO()
    schema = pa.schema({"text": pa.string(), "most": pa.int64()})
    with pq.ParquetWriter(sink, schema) as writer:
        for start in range(0, rows, _GROUP):
            some = range(start, min(start + _GROUP, rows))
            texts = [f"row {row}: {'a post of some length ' * 20}" for row in some]
            writer.write_table(pa.table({"text": texts, "most": [16] * len(texts)}, schema))
    return sink.getvalue()


if __name__ == "__main__":
    asyncio.run(main())
