"""What a row of a table costs before it runs: rendered by the child process, and then checked.

python -m benchmarks.datasets [--rows N] [--phrases N] [--planned]

With `--planned`, a gateway and a dispatcher on servers of their own plan a batch over the table.
"""

import argparse
import asyncio
import io
import json
import tempfile
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from openai import omit

from benchmarks.bench_yard import running_yard
from benchmarks.large_inputs import Service
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


def planned(rows: int, phrases: int) -> None:
    """Plan a batch over a table, from its creation until it may run."""
    limits = {"BATCHYARD_MAX_DATASET_ROWS": str(rows)}
    names = ("gateway", "dispatcher")
    with (
        tempfile.TemporaryDirectory(prefix="batchyard-table-") as folder,
        running_yard(Path(folder), names, model="m", changes=limits) as yard,
    ):
        service = Service(yard)
        _plan(service, 1000, phrases)
        before, dispatcher = service.memory(), psutil.Process(yard.pids["dispatcher"])
        begun = dispatcher.cpu_times()
        with service.watching() as peak:
            batch, seconds = _plan(service, rows, phrases)
        spent = dispatcher.cpu_times()
        size = service.client.files.retrieve(batch.input_file_id).bytes
        assert asyncio.run(service.count_rows(batch)) == rows
    print(f"rows                       {rows:,}")
    print(f"bytes of their requests    {size:,}")
    print(f"from creation to plan      {seconds:.0f} s")
    # Others may share the machine: what a row takes of a core hardly depends on them.
    planning = spent.user + spent.system - begun.user - begun.system
    print(f"the dispatcher             {planning / rows * 1e6:.1f} µs of a core a row")
    rendering = spent.children_user + spent.children_system
    rendering -= begun.children_user + begun.children_system
    print(f"the renderer               {rendering / rows * 1e6:.1f} µs of a core a row")
    for name in sorted(peak):
        first, most = before[name] / 2**20, peak[name] / 2**20
        print(f"{f'memory of the {name}':<27}{first:.0f} MiB before, {most:.0f} MiB at most")


def _plan(service: Service, rows: int, phrases: int) -> tuple[Any, float]:
    table = ("table.parquet", _table(rows, phrases))
    file = service.client.files.create(file=table, purpose="user_data")
    wanted = {"file_id": file.id, "template": _TEMPLATE}
    return service.planned(input_file_id=omit, extra_body={"input": wanted})


async def rendered_and_checked(rows: int, phrases: int) -> None:
    """Render a Parquet file from memory, then check the lines as planning does."""
    table = _table(rows, phrases)
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


def _table(rows: int, phrases: int) -> bytes:
    """Written group by group: millions of texts have no room beside each other."""
    sink = io.BytesIO()
    schema = pa.schema({"text": pa.string(), "most": pa.int64()})
    with pq.ParquetWriter(sink, schema) as writer:
        for start in range(0, rows, _GROUP):
            some = range(start, min(start + _GROUP, rows))
            texts = [f"row {row}: {'a post of some length ' * phrases}" for row in some]
            writer.write_table(pa.table({"text": texts, "most": [16] * len(texts)}, schema))
    return sink.getvalue()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.datasets", description=__doc__)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--phrases", type=int, default=20, help="of each row's text, 22 bytes each")
    parser.add_argument("--planned", action="store_true")
    given = parser.parse_args()
    if given.planned:
        planned(given.rows, given.phrases)
    else:
        asyncio.run(rendered_and_checked(given.rows, given.phrases))
