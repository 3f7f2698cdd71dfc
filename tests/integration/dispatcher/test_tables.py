"""Tables of batches, on real Redis and S3, read with what people read tables with."""

import asyncio
import io
import json
import os
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd  # type: ignore[import-untyped]  # its stubs are a package of their own
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

from dispatcher.finaliser import Finaliser
from dispatcher.remaker import Remaker
from dispatcher.tables import Tables
from shared import ids
from shared.catalog import Catalog
from shared.dataset.dataset import Dataset
from shared.input_places import InputPlaces
from shared.ledger.commits import cancel
from shared.ledger.manifests import Manifest
from shared.ledger.tables import MadeTable, carried_key
from shared.lifecycle import Status
from shared.openai.shapes import Batch, BatchTable
from shared.submission.accept import accept
from shared.submission.datasets import Datasets
from shared.submission.tables import table_fields
from shared.table.output import Output
from tests.contract.installing import installed_by_pip
from tests.integration.dispatcher.conftest import (
    CHAT,
    MICROS,
    OUTPUT_SECONDS,
    BatchYard,
    Result,
    a_planner,
    bad,
    lines,
)
from tests.manifests import a_manifest, today

TEMPLATE = {"model": "m", "messages": [{"role": "user", "content": "Is this good? {{ text }}"}]}
SCHEMA = {
    "type": "object",
    "properties": {
        "label": {"enum": ["good", "bad"]},
        "score": {"anyOf": [{"type": "number"}, {"type": "null"}]},
        "words": {"type": "array", "items": {"$ref": "#/$defs/word"}},
    },
    "required": ["label"],
    "$defs": {"word": {"type": "object", "properties": {"at": {"type": "integer"}}}},
}
PLACE = "inbox/acme/"
_DUCKDB = Path(__file__).parents[3] / "locks/duckdb.txt"
#: In a process of its own, which takes its Ray with it.
_READ_BY_RAY = """
import json, sys, ray
ray.init(address="local", num_cpus=1, include_dashboard=False)
folder = ray.data.read_parquet(sys.argv[1], file_extensions=["parquet"])
rows = [row for row in folder.take_all() if row["error_code"] is None]
rows = [[row["custom_id"], row["label"], row["score"], row["words"][0]["at"]] for row in rows]
print(json.dumps(sorted(rows, key=lambda row: row[2])))
"""

#: In a process with the library alone.
_READ_BY_DUCKDB = """
import json, sys, duckdb
files = f"{sys.argv[1]}/*.parquet"
rows = duckdb.execute(
    "SELECT custom_id, label, score, words[1]['at'] FROM read_parquet(?) "
    "WHERE error_code IS NULL ORDER BY score", [files]
).fetchall()
sums = duckdb.execute("SELECT label, sum(output_tokens) FROM read_parquet(?) "
    "WHERE label IS NOT NULL GROUP BY label", [files]).fetchall()
print(json.dumps([rows, [[label, int(tokens)] for label, tokens in sums]]))
"""


def said(text: str) -> Result:
    """A chat model's answer."""
    choice = {"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    return 200, json.dumps({"choices": [choice], "usage": usage}).encode(), MICROS


def embedded(numbers: Sequence[float]) -> Result:
    body = {"data": [{"embedding": list(numbers)}], "usage": {"prompt_tokens": 2}}
    return 200, json.dumps(body).encode(), MICROS


def judged(label: str, **more: Any) -> Result:
    return said(json.dumps({"label": label, **more}))


async def test_a_table_has_the_inputs_columns_and_typed_answers_in_the_order_of_the_rows(
    yard: BatchYard,
) -> None:
    at = datetime(2026, 1, 2, tzinfo=UTC)
    posts = {"text": list("abcdefgh"), "n": range(8), "at": [at] * 8, "tags": [["x"]] * 8}
    await put(yard, "posts/lang=en/1.parquet", parquet(posts))
    batch_id = await planned(
        yard,
        {"schema": SCHEMA},
        objects="posts/",
        filter="n != 2",
        carry=["n", "at", "tags", "lang"],
    )
    words = [{"at": 1}, {"at": 2}]
    results = {0: judged("good", score=1, words=words), 3: bad(), 4: said("I'd say good")}

    batch = await ended(yard, batch_id, lambda row: results.get(row, judged("bad")))

    table = pads.dataset(await files_of(yard, batch)).to_table()
    assert table.schema.field("at").type == pa.timestamp("us", tz="UTC")
    assert table.schema.field("score").type == pa.float64()
    assert table.schema.field("words").type == pa.list_(pa.struct([("at", pa.int64())]))
    assert table["n"].to_pylist() == [0, 1, 3, 4, 5, 6, 7]
    assert table["custom_id"].to_pylist()[:3] == ["row-1", "row-2", "row-4"]
    assert table["lang"].to_pylist() == ["en"] * 7
    assert table["tags"][0].as_py() == ["x"]
    first = table.slice(0, 1).to_pylist()[0]
    assert (first["label"], first["score"], first["words"]) == ("good", 1.0, words)
    assert (first["finish_reason"], first["input_tokens"], first["output_tokens"]) == ("stop", 7, 3)
    assert table["label"].to_pylist() == ["good", "bad", "bad", None, None, "bad", "bad"]
    codes = table["error_code"].to_pylist()
    assert [codes[3] is not None, codes[4], codes[5]] == [True, "invalid_answer", None]
    assert table["error"][4].as_py() == "The answer: it is no JSON."
    assert table["answer"][4].as_py() == "I'd say good"


async def test_embeddings_are_fixed_size_lists(yard: BatchYard) -> None:
    body = b"".join(
        json.dumps({"custom_id": f"e{n}", "method": "POST", "url": "/v1/embeddings",
                    "body": {"model": "embedder", "input": "x"}}).encode() + b"\n"
        for n in range(4)
    )  # fmt: skip
    batch_id = await planned_over(yard, body, {}, endpoint="/v1/embeddings")
    rows = [embedded([0.5, 1.5, n]) for n in range(3)]

    batch = await ended(yard, batch_id, lambda row: (bad(), *rows)[row])

    table = pads.dataset(await files_of(yard, batch)).to_table()
    assert table.schema.field("embedding").type == pa.list_(pa.float32(), 3)
    assert table["embedding"].to_pylist() == [None, *([0.5, 1.5, float(n)] for n in range(3))]


async def test_pandas_reads_the_folder_of_a_table_with_several_files(
    yard: BatchYard, catalog: Catalog, tmp_path: Path
) -> None:
    finaliser = a_finaliser(yard, file_bytes=1)
    large = replace(yard, planner=a_planner(yard.state, yard.storage, catalog, rows=700))
    batch_id = await planned_over(large, lines(1400), {})

    batch = await ended(yard, batch_id, lambda row: said(f"answer {row}"), finaliser)

    folder = await downloaded(yard, batch, tmp_path)
    assert len(list(folder.glob("part-*.parquet"))) > 1
    frame = pd.read_parquet(folder)
    assert list(frame["answer"]) == [f"answer {row}" for row in range(1400)]


@pytest.fixture
async def folder(yard: BatchYard, catalog: Catalog, tmp_path: Path) -> Path:
    """A table of 1,400 rows in several files, of which the fourth row failed."""
    large = replace(yard, planner=a_planner(yard.state, yard.storage, catalog, rows=700))
    batch_id = await planned_over(large, lines(1400), {"schema": SCHEMA})
    words = [{"at": 1}]

    def result(row: int) -> Result:
        return bad() if row == 3 else judged("good", score=row / 2, words=words)

    batch = await ended(yard, batch_id, result, a_finaliser(yard, file_bytes=1))
    found = await downloaded(yard, batch, tmp_path)
    assert len(list(found.glob("part-*.parquet"))) > 1
    return found


_EXPECTED = [[f"row-{row}", "good", row / 2, 1] for row in range(1400) if row != 3]


async def test_ray_data_reads_the_folder_of_a_table(folder: Path) -> None:
    shown = await asyncio.to_thread(read_by, _READ_BY_RAY, folder)

    assert shown == _EXPECTED


async def test_duckdb_reads_the_folder_of_a_table(folder: Path) -> None:
    alone = {"PYTHONPATH": str(installed_by_pip("duckdb", _DUCKDB))}

    shown = await asyncio.to_thread(read_by, _READ_BY_DUCKDB, folder, alone)

    assert shown == [_EXPECTED, [["good", 3 * len(_EXPECTED)]]]


@pytest.mark.parametrize("format_", ["csv", "jsonl"])
async def test_a_table_may_be_text(yard: BatchYard, format_: str) -> None:
    table = pa.table({"text": ['a,\n"b', None], "at": pa.array([1, 2], pa.timestamp("ns"))})
    sink = io.BytesIO()
    pq.write_table(table, sink)
    await put(yard, "t.parquet", sink.getvalue())
    columns = {"text": "input.text", "at": "input.at", "good": "parsed"}
    wanted = {"format": format_, "columns": columns, "schema": {"type": "boolean"}}
    batch_id = await planned(yard, wanted, objects="t.parquet", carry=["text", "at"])

    batch = await ended(yard, batch_id, lambda row: said("true" if row else "false"))

    [body] = await bodies_of(yard, batch)
    at = ["1970-01-01 00:00:00.000000001", "1970-01-01 00:00:00.000000002"]
    if format_ == "csv":
        frame = pd.read_csv(io.BytesIO(body))
        assert list(frame["good"]) == [False, True]
        assert frame["text"][0] == 'a,\n"b'
        assert list(frame["at"]) == at
    else:
        assert [json.loads(line) for line in body.splitlines()] == [
            {"text": 'a,\n"b', "at": at[0], "good": False},
            {"text": None, "at": at[1], "good": True},
        ]


async def test_a_table_goes_to_the_tenants_own_place_and_says_what_is_in_it(
    yard: BatchYard,
) -> None:
    place = f"s3://{yard.storage.bucket}/{PLACE}answers/"
    batch_id = await planned_over(yard, lines(4), {"destination": place})

    batch = await ended(yard, batch_id, lambda _: said("x"))

    table = table_of(batch)
    assert table.url == f"{place}{batch_id}/"
    listing = await listing_of(yard, f"{PLACE}answers/{batch_id}/")
    assert [file.rows for file in listing.files] == [4]
    assert [file.file_id for file in listing.files] == table.file_ids
    [file] = [await yard.state.files.get("acme", one) for one in table.file_ids]
    assert (file.owned, file.sha256) == (False, listing.files[0].sha256)


async def test_a_table_whose_place_cannot_be_written_is_ours_and_says_so(yard: BatchYard) -> None:
    batch_id = await planned_over(yard, lines(4), {"destination": "s3://no-such-bucket/a/"})

    batch = await ended(yard, batch_id, lambda _: said("x"))

    table = table_of(batch)
    assert table.url is not None
    assert table.url.startswith(f"s3://{yard.storage.bucket}/batches/")
    assert table.error is not None
    assert table.error.code == "destination_refused"
    assert "s3://no-such-bucket/a/" in table.error.message
    assert len(pads.dataset(await files_of(yard, batch)).to_table()) == 4


async def test_a_table_without_what_its_rows_carry_says_so_and_the_results_stay(
    yard: BatchYard,
) -> None:
    await put(yard, "t.csv", b"text\n" + b"x\n" * 4)
    for damage in ("gone", "rotten"):
        batch_id = await planned(yard, {}, objects="t.csv", carry=["text"])
        key = carried_key(batch_id)
        body = bytearray(await yard.storage.get(key))
        body[20] ^= 1
        await (
            yard.storage.remove([key]) if damage == "gone" else yard.storage.put(key, bytes(body))
        )

        batch = await ended(yard, batch_id, lambda _: said("x"))

        table = table_of(batch)
        assert batch.status is Status.COMPLETED
        assert len(await yard.parsed(batch.output_file_id)) == 4
        assert (table.url, table.file_ids) == (None, [])
        assert table.error is not None
        assert table.error.code == "carried_lost"


async def test_finalisers_that_repeat_a_table_write_the_same_files(yard: BatchYard) -> None:
    await put(yard, "t.csv", b"text\n" + b"x\n" * 9)
    batch_id = await planned(yard, {}, objects="t.csv", carry=["text"])
    await yard.run(batch_id, lambda row: said(f"{row}"))
    first = _Dies(yard)

    with pytest.raises(ZeroDivisionError):
        await a_finaliser(yard, tables=first).finish(batch_id)
    before = {key: await yard.storage.get(key) for key in await table_keys(yard, batch_id)}
    await yard.finaliser.finish(batch_id)
    await yard.finaliser.finish(batch_id)

    assert len(before) == 2
    assert before == {key: await yard.storage.get(key) for key in await table_keys(yard, batch_id)}
    assert (await batch_of(yard, batch_id)).status is Status.COMPLETED


@pytest.mark.parametrize("destination", [None, "here"])
@pytest.mark.parametrize("lost", ["wrong bytes", "gone", "no _SUCCESS"])
async def test_a_damaged_table_is_made_again_as_it_was(
    yard: BatchYard, catalog: Catalog, lost: str, destination: str | None
) -> None:
    large = replace(yard, planner=a_planner(yard.state, yard.storage, catalog, rows=700))
    place = f"s3://{yard.storage.bucket}/{PLACE}answers/"
    batch_id = await planned_over(large, lines(1400), {"destination": place} if destination else {})
    finaliser = a_finaliser(yard, file_bytes=1)
    batch = await ended(yard, batch_id, lambda row: said(f"answer {row}"), finaliser)
    prefix = (table_of(batch).url or "").partition(f"{yard.storage.bucket}/")[2]
    keys = await yard.storage.keys(prefix)
    whole = {key: await yard.storage.get(key) for key in keys}
    first, second, *_ = sorted(key for key in keys if "/part-" in key)
    success = f"{prefix}_SUCCESS"
    if lost == "wrong bytes":
        await yard.storage.put(second, whole[second][::-1])
    else:
        await yard.storage.remove([first] if lost == "gone" else [success, first])

    outcome = await remade(yard, batch_id)

    assert outcome == "made again: its table"
    assert {key: await yard.storage.get(key) for key in await yard.storage.keys(prefix)} == whole
    assert list((await files_of(yard, batch))["answer"].to_pylist())[-1] == "answer 1399"
    assert await remade(yard, batch_id) == "made nothing: its files are as they were written"


@pytest.mark.parametrize("forged", ["file", "folder", "file id"])
async def test_what_a_tenant_writes_into_its_listing_leads_to_no_object_of_others(
    yard: BatchYard, forged: str
) -> None:
    place = f"s3://{yard.storage.bucket}/{PLACE}answers/"
    batch_id = await planned_over(yard, lines(4), {"destination": place})
    batch = await ended(yard, batch_id, lambda _: said("x"), a_finaliser(yard, file_bytes=1))
    theirs = "files/globex/file-1"
    await yard.storage.put(theirs, b"of another tenant")
    prefix = f"{PLACE}answers/{batch_id}/"
    success = f"{prefix}_SUCCESS"
    listing = await yard.storage.get(success)
    changed = json.loads(listing)
    if forged == "file":
        changed |= {"is_ours": True, "files": [{**changed["files"][0], "key": theirs}]}
    elif forged == "folder":
        key = f"{prefix}../../../../{theirs}"
        changed |= {"is_ours": True, "files": [{**changed["files"][0], "key": key}]}
    else:
        changed["files"][0]["file_id"] = "file-globex"
        await yard.storage.put(changed["files"][0]["key"], b"damaged")
    await yard.storage.put(success, json.dumps(changed).encode())

    outcome = await remade(yard, batch_id)

    assert outcome == "made again: its table"
    assert await yard.storage.get(theirs) == b"of another tenant"
    assert json.loads(await yard.storage.get(success)) == json.loads(listing)
    assert len(await files_of(yard, batch)) == 4


async def test_a_table_that_cannot_be_made_as_it_was_stays_as_it_is(yard: BatchYard) -> None:
    await put(yard, "posts/1.parquet", parquet({"text": ["a", "b"], "n": [1, 2]}))
    batch_id = await planned(yard, {}, objects="posts/", carry=["n"])
    batch = await ended(yard, batch_id, lambda _: said("yes"))
    [file] = [key for key in await table_keys(yard, batch.id) if key.endswith(".parquet")]
    await yard.storage.put(file, b"damaged")
    await yard.storage.remove([carried_key(batch_id)])

    outcome = await remade(yard, batch_id)

    assert outcome.startswith("not possible: ")
    assert "carry" in outcome
    assert await yard.storage.get(file) == b"damaged"


async def test_a_cancelled_batch_has_a_table_of_all_rows_beside_no_whole_one(
    yard: BatchYard,
) -> None:
    place = f"s3://{yard.storage.bucket}/{PLACE}"
    batch_id = await planned_over(yard, lines(6), {"destination": place})
    claims = await yard.claim(batch_id)
    await yard.commit(claims[0], [said("x")] * claims[0].slice.rows)
    for claim in claims[1:]:
        await yard.state.claims.release(claim)
    await cancel(yard.state, yard.storage, batch_id)

    await yard.finaliser.finish(batch_id)

    batch = await batch_of(yard, batch_id)
    assert table_of(batch).url == f"{place}{batch_id}-cancelled/"
    codes = pads.dataset(await files_of(yard, batch)).to_table()["error_code"].to_pylist()
    assert codes == [None] * 3 + ["batch_cancelled"] * 3


async def test_columns_of_several_types_are_told_before_anything_runs(yard: BatchYard) -> None:
    await put(yard, "t.jsonl", b'{"text":"a","n":1}\n{"text":"b","n":"x"}\n')

    batch_id = await planned(yard, {}, objects="t.jsonl", carry=["n"])

    record = await yard.state.batches.get(batch_id)
    first = json.loads(record.fields["errors"])[0]
    assert (record.status, first["code"], first["param"]) == (
        Status.FAILED,
        "mixed_types",
        "input.carry",
    )


async def test_long_integers_beside_fractions_are_told_before_anything_runs(
    yard: BatchYard,
) -> None:
    await put(yard, "posts/1.parquet", parquet({"text": ["a"], "n": [2**60 + 1]}))
    await put(yard, "posts/2.parquet", parquet({"text": ["b"], "n": [1.5]}))
    batch_id = await planned(yard, {}, objects="posts/", carry=["n"])

    record = await yard.state.batches.get(batch_id)
    assert json.loads(record.fields["errors"])[0]["code"] == "mixed_types"


async def test_integers_that_fractions_can_hold_go_along_as_such(yard: BatchYard) -> None:
    await put(yard, "posts/1.parquet", parquet({"text": ["a"], "n": [2**53]}))
    await put(yard, "posts/2.parquet", parquet({"text": ["b"], "n": [1.5]}))
    batch_id = await planned(yard, {}, objects="posts/", carry=["n"])

    batch = await ended(yard, batch_id, lambda _: said("yes"))

    assert (await files_of(yard, batch))["n"].to_pylist() == [float(2**53), 1.5]


@pytest.mark.parametrize("format_", ["parquet", "csv", "jsonl"])
async def test_objects_without_fields_go_along_in_every_format(
    yard: BatchYard, format_: str
) -> None:
    await put(yard, "t.jsonl", b'{"text":"a","meta":{}}\n{"text":"b","meta":{}}\n')
    batch_id = await planned(yard, {"format": format_}, objects="t.jsonl", carry=["meta"])

    batch = await ended(yard, batch_id, lambda _: said("yes"))

    assert table_of(batch).error is None
    assert table_of(batch).rows == 2


@pytest.mark.parametrize("format_", ["csv", "jsonl"])
async def test_times_within_lists_go_along_as_text(yard: BatchYard, format_: str) -> None:
    times = pa.array([[1_700_000_000_123_456_789]], pa.list_(pa.timestamp("ns")))
    sink = io.BytesIO()
    pq.write_table(pa.table({"text": ["a"], "times": times}), sink)
    await put(yard, "t.parquet", sink.getvalue())
    batch_id = await planned(yard, {"format": format_}, objects="t.parquet", carry=["times"])

    batch = await ended(yard, batch_id, lambda _: said("yes"))

    [body] = await bodies_of(yard, batch)
    assert b"2023-11-14T22:13:20.123456" in body


class _Dies(Tables):
    """A finaliser's, which is killed once the table is whole."""

    def __init__(self, yard: BatchYard) -> None:
        super().__init__(yard.storage)

    async def make(self, *args: Any) -> Any:
        await super().make(*args)
        raise ZeroDivisionError


def a_finaliser(
    yard: BatchYard, *, file_bytes: int = 1 << 28, tables: Tables | None = None
) -> Finaliser:
    tables = tables or Tables(yard.storage, file_bytes=file_bytes)
    return Finaliser(yard.state, yard.storage, output_seconds=OUTPUT_SECONDS, tables=tables)


def parquet(table: Mapping[str, Any]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({name: list(values) for name, values in table.items()}), sink)
    return sink.getvalue()


async def put(yard: BatchYard, name: str, body: bytes) -> None:
    await yard.storage.put(f"{PLACE}{name}", body)


def places(yard: BatchYard) -> InputPlaces:
    further = {"acme": ["s3://no-such-bucket/"]}
    return InputPlaces(yard.storage.bucket, "inbox/{tenant}/", further)


async def planned(yard: BatchYard, output: dict[str, Any], *, objects: str, **wanted: Any) -> str:
    """A batch over a dataset that runs, and wants this table."""
    url = f"s3://{yard.storage.bucket}/{PLACE}{objects}"
    dataset = Dataset.model_validate({"objects": url, "template": TEMPLATE, **wanted})
    datasets = Datasets(yard.state, yard.storage, places(yard))
    message_id = secrets.token_hex(8)
    source = await datasets.kept(
        ids.batch_id("acme", message_id), await datasets.pinned("acme", dataset)
    )
    source |= table_of_output(yard, output, dataset)
    manifest: Manifest = msgspec.structs.replace(a_manifest(message_id, **today()), **source)
    await accept(yard.state, yard.storage, manifest)
    await yard.planner.plan(manifest.id)
    return manifest.id


async def planned_over(
    yard: BatchYard, body: bytes, output: dict[str, Any], *, endpoint: str = CHAT
) -> str:
    """A batch over these lines that runs, and wants this table."""
    table = table_of_output(yard, output, None, endpoint=endpoint)
    return await yard.plan(body, endpoint=endpoint, **table)


def table_of_output(
    yard: BatchYard, output: dict[str, Any], dataset: Dataset | None, *, endpoint: str = CHAT
) -> dict[str, Any]:
    wanted = Output.model_validate(output)
    return table_fields("acme", wanted, dataset, endpoint=endpoint, places=places(yard))


async def ended(
    yard: BatchYard, batch_id: str, result: Any, finaliser: Finaliser | None = None
) -> Batch:
    await yard.run(batch_id, result)
    await (finaliser or yard.finaliser).finish(batch_id)
    return await batch_of(yard, batch_id)


async def batch_of(yard: BatchYard, batch_id: str) -> Batch:
    return (await yard.state.batches.get(batch_id)).to_openai()


def table_of(batch: Batch) -> BatchTable:
    assert batch.table is not None
    return batch.table


def read_by(program: str, folder: Path, environment: Mapping[str, str] | None = None) -> Any:
    """What a program reads in the folder."""
    shown = subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    return json.loads(shown.stdout.splitlines()[-1])


async def remade(yard: BatchYard, batch_id: str) -> str:
    """What became of the wish for its files."""
    await yard.state.remakes.ask(batch_id)
    tables = Tables(yard.storage, file_bytes=1)
    await Remaker(yard.state, yard.storage, tables).remake(batch_id)
    return await yard.state.remakes.outcome(batch_id)


async def listing_of(yard: BatchYard, prefix: str) -> MadeTable:
    return msgspec.json.decode(await yard.storage.get(f"{prefix}_SUCCESS"), type=MadeTable)


async def bodies_of(yard: BatchYard, batch: Batch) -> list[bytes]:
    return [await yard.content(file_id) for file_id in table_of(batch).file_ids]


async def files_of(yard: BatchYard, batch: Batch) -> pa.Table:
    return pa.concat_tables(pq.read_table(io.BytesIO(one)) for one in await bodies_of(yard, batch))


async def downloaded(yard: BatchYard, batch: Batch, folder: Path) -> Path:
    """The table's folder on this machine."""
    for key in await table_keys(yard, batch.id):
        (folder / key.rpartition("/")[2]).write_bytes(await yard.storage.get(key))
    return folder


async def table_keys(yard: BatchYard, batch_id: str) -> list[str]:
    return [key for key in await yard.storage.keys(f"batches/{batch_id}/") if "/table/" in key]
