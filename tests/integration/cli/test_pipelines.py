"""Pipelines behind the doors: deaths between the steps, damage, and a lost Redis."""

import asyncio
import io
import json
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from redis.asyncio import Redis

from cli import servers
from cli.rebuild.rebuild import Rebuild
from dispatcher.forgetting import forget_pipelines
from dispatcher.pipeline_end import PipelineEnd
from dispatcher.pipeline_order import in_order
from dispatcher.pipeline_run import PipelineRun
from dispatcher.pipelines import PipelineKeeper
from dispatcher.table_files import LostTableError
from shared import ids
from shared.errors import NotFoundError
from shared.ledger.pipelines import (
    edge_folder,
    edges_folder,
    handover_key,
    pipeline_folder,
    pipeline_key,
    tokenizer_key,
)
from shared.ledger.records import encoded
from shared.lifecycle import FINAL, Status
from shared.retention import DAY_SECONDS, EVENT_HISTORY_SECONDS
from shared.state import PipelineRecord, State
from shared.state.state import NAMESPACE
from shared.storage import Storage
from shared.submission.pipelines import Pipeline, read_pipeline
from shared.table.frames import FileEnd
from shared.table.writing import DIED
from shared.tasks import end
from shared.tenants import TenantSettings
from tests.eventually import eventually
from tests.integration.cli.yards import A_CALL, TENANT, Yards, empty, yards_in
from tests.integration.dispatcher.conftest import MICROS
from tests.models import make_model
from tests.processes import below_this
from worker.engine_errors import Result

_RENDERER = "shared.dataset.renderer"
_SECOND = {
    "call": {
        "endpoint": "/v1/chat/completions",
        "template": {"model": "m", "messages": [{"role": "user", "content": "{{ answer }}"}]},
        "answer": "second",
    }
}
_ANSWER = {
    "choices": [{"message": {"content": "said"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 2},
}
_SAID = (200, json.dumps(_ANSWER).encode(), MICROS)
_VECTOR = {
    "type": "object",
    "properties": {"at": {"type": "array", "items": {"type": "number"}}},
    "required": ["at"],
}
_STAGES: Sequence[dict[str, Any]] = (
    {"filter": "text != 't0'"},
    A_CALL,
    {"deduplicate": ["text"]},
    _SECOND,
)


@pytest.fixture
def state(own_state: State) -> State:
    """On a Redis that the test may empty."""
    return own_state


@pytest.fixture
def yards(state: State, storage: Storage, tmp_path: Path) -> Yards:
    return yards_in(tmp_path, state, storage)


def _answered(text: str) -> Result:
    body = {**_ANSWER, "choices": [{"message": {"content": text}, "finish_reason": "stop"}]}
    return 200, json.dumps(body).encode(), MICROS


async def a_run(yards: Yards, pipeline_id: str) -> PipelineRun:
    """The pipeline as a new leader finds it."""
    run = PipelineRun(
        yards.state,
        yards.storage,
        yards.catalog,
        yards.additions(),
        PipelineEnd(yards.state, yards.storage, output_seconds=3600),
        await read_pipeline(yards.storage, pipeline_id),
    )
    await run.load()
    return run


async def record_of(yards: Yards, pipeline: Pipeline) -> PipelineRecord:
    return await yards.state.pipelines.get(TENANT, pipeline.id)


async def work(
    yards: Yards, pipeline: Pipeline, said: Callable[[int], Result] = lambda _: _SAID
) -> None:
    """What lane jobs and the finaliser do for its batches; `said` is the answer to each row."""
    for batch in await yards.state.batches.many(pipeline.batch_ids):
        if batch.status is Status.IN_PROGRESS and batch.number("slices_total"):
            await yards.yard.run(batch.id, said)
        if batch.status in (Status.FINALIZING, Status.CANCELLING):
            await yards.yard.finaliser.finish(batch.id)


async def lead(
    yards: Yards,
    pipeline: Pipeline,
    *,
    steps: int = 60,
    said: Callable[[int], Result] = lambda _: _SAID,
) -> PipelineRecord:
    """Let another leader do each step, until the pipeline has ended."""
    for _ in range(steps):
        record = await record_of(yards, pipeline)
        if record.has_ended:
            break
        run = await a_run(yards, pipeline.id)
        await run.step(record)
        await run.close()
        await work(yards, pipeline, said)
    return await record_of(yards, pipeline)


async def lines(yards: Yards, record: PipelineRecord, kind: str) -> list[dict[str, Any]]:
    if not (file_id := record.fields[f"{kind}_file_id"]):
        return []
    file = await yards.state.files.get(TENANT, file_id)
    return [json.loads(line) for line in (await yards.storage.get(file.key)).splitlines()]


async def test_with_another_leader_for_each_step_no_row_is_lost_or_doubled(yards: Yards) -> None:
    pipeline = await yards.pipeline("steps", *_STAGES)

    ended = await lead(yards, pipeline)

    assert ended.fields["status"] == "completed"
    rows = await lines(yards, ended, "output")
    # Rows are alike in pairs, and the first two are not wanted.
    assert [row["custom_id"] for row in rows] == ["r2", "r4", "r6", "r8"]
    assert all(row["answer"] and row["second"] for row in rows)
    first, second = await yards.state.batches.many(pipeline.batch_ids)
    assert (first.number("total"), second.number("total")) == (7, 4)
    assert {first.status, second.status} == {Status.COMPLETED}
    assert json.loads(ended.fields["counts"]) == {
        "0": {"failed": 0, "dropped": 2},
        "2": {"failed": 0, "dropped": 3},
    }


@pytest.mark.parametrize(
    "limits", [TenantSettings(enqueued_requests=4), TenantSettings(enqueued_tokens=40)]
)
async def test_one_of_a_tenant_that_has_room_for_few_requests_comes_through(
    limits: TenantSettings, yards: Yards
) -> None:
    await yards.state.tenants.put(TENANT, limits)
    pipeline = await yards.pipeline("narrow", A_CALL, _SECOND)

    ended = await lead(yards, pipeline)

    assert ended.fields.get("status") == "completed"
    rows = await lines(yards, ended, "output")
    assert [row["custom_id"] for row in rows] == [f"r{number}" for number in range(9)]
    assert all(row["answer"] and row["second"] for row in rows)


async def test_the_output_is_in_the_order_of_the_input_whatever_was_done_first(
    yards: Yards,
) -> None:
    split = {"split": {"column": "text", "tokens": 1, "into": "chunk"}}
    pipeline = await yards.pipeline("ordered", split, A_CALL)
    for _ in range(2):
        await (await a_run(yards, pipeline.id)).step(await record_of(yards, pipeline))
    [batch_id] = pipeline.batch_ids
    early, late, last = await yards.yard.claim(batch_id)
    # What was done first is the beginning and the end.
    for claims in ((last, early), (late,)):
        for claim in claims:
            await yards.yard.commit(claim, [_SAID for _ in claim.slice.row_numbers])
        await (await a_run(yards, pipeline.id)).step(await record_of(yards, pipeline))

    ended = await lead(yards, pipeline)

    names = [row["custom_id"] for row in await lines(yards, ended, "output")]
    assert names == [f"r{number}#0" for number in range(9)]
    edge = (await a_run(yards, pipeline.id)).edges[-1]
    # Its two handovers overlap; without room for both, they are read again.
    assert [begins for begins, _ in edge.begins] == [(1, 0), (4, 0)]
    for held in (1, 1_000_000):
        found = [item.id async for some in in_order(edge, held_bytes=held) for item in some]
        assert found == names


async def test_a_table_has_the_rows_in_the_order_of_the_input_with_typed_columns(
    yards: Yards,
) -> None:
    schema = {
        "type": "object",
        "properties": {"score": {"type": "number"}, "tags": {"type": "array"}},
        "required": ["score"],
    }
    ask = {"call": {**A_CALL["call"], "schema": schema}}
    pipeline = await yards.pipeline("table", ask, output={"format": "parquet"})
    said = {n: _answered(json.dumps({"score": n})) for n in range(9)} | {4: _answered("no")}

    ended = await lead(yards, pipeline, said=lambda row: said[row])

    [file] = await table_files(yards, ended)
    table = pq.read_table(io.BytesIO(file))
    assert table.column_names == ["custom_id", "text", "answer", "score", "tags"]
    assert table.schema.field("score").type == pa.float64()
    assert table["custom_id"].to_pylist() == [f"r{n}" for n in range(9) if n != 4]
    assert table["text"].to_pylist() == [f"t{n // 2}" for n in range(9) if n != 4]
    assert table["score"].to_pylist() == [float(n) for n in range(9) if n != 4]
    shown = json.loads(ended.fields["table"])
    assert (shown["rows"], shown["bytes"], shown["url"]) == (8, len(file), None)


@pytest.mark.parametrize(
    ("format_", "first"),
    [("csv", b"name,words\nr0,said\n"), ("jsonl", b'{"name":"r0","words":"said"}\n')],
)
async def test_a_table_may_be_text_in_the_tenants_own_place(
    format_: str, first: bytes, yards: Yards
) -> None:
    output = {
        "format": format_,
        "columns": {"name": "custom_id", "words": "answer"},
        "destination": f"s3://{yards.storage.bucket}/inbox/acme/",
    }

    ended = await lead(yards, await yards.pipeline(f"own {format_}", A_CALL, output=output))

    shown = json.loads(ended.fields["table"])
    folder = f"inbox/acme/{ended.id}/"
    assert (shown["url"], shown["file_ids"]) == (f"s3://{yards.storage.bucket}/{folder}", [])
    assert (await yards.storage.get(f"{folder}part-00000.{format_}")).startswith(first)
    assert json.loads(await yards.storage.get(f"{folder}_SUCCESS"))["rows"] == 9


async def test_a_table_whose_place_is_gone_becomes_files(yards: Yards) -> None:
    pipeline = await yards.pipeline("refused", A_CALL, output={"format": "jsonl"})
    stored = pipeline.stored
    assert stored.output is not None
    gone = msgspec.structs.replace(stored.output, destination="s3://no-such-bucket-here/a/")
    await yards.storage.put(
        pipeline_key(pipeline.id), encoded(msgspec.structs.replace(stored, output=gone))
    )

    ended = await lead(yards, pipeline)

    shown = json.loads(ended.fields["table"])
    assert shown["error"]["code"] == "destination_refused"
    [file] = await table_files(yards, ended)
    assert len(file.splitlines()) == shown["rows"] == 9


async def test_a_leader_that_repeats_the_end_makes_the_same_table(
    yards: Yards, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = await yards.pipeline("repeated", A_CALL, output={"format": "csv"})
    monkeypatch.setattr(PipelineEnd, "_drop_results", _dies)
    with pytest.raises(asyncio.CancelledError):
        await lead(yards, pipeline)
    monkeypatch.undo()

    ended = await lead(yards, pipeline)

    shown = json.loads(ended.fields["table"])
    [file] = await table_files(yards, ended)
    assert (shown["rows"], shown["bytes"]) == (9, len(file))


_INBOX = "inbox/acme/"


async def _written(yards: Yards, name: str, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    """A pipeline whose files and table are written, and which nobody knows to have ended."""
    output = {"format": "csv", "destination": f"s3://{yards.storage.bucket}/{_INBOX}"}
    pipeline = await yards.pipeline(name, A_CALL, output=output)
    monkeypatch.setattr("dispatcher.pipeline_end.crash.point", _dies_at("pipelines.files_written"))
    with pytest.raises(asyncio.CancelledError):
        await lead(yards, pipeline)
    monkeypatch.undo()
    return pipeline


async def test_an_ending_that_was_decided_stays_so_and_makes_one_table(
    yards: Yards, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = await _written(yards, "decided", monkeypatch)
    failing: dict[str, str | int] = {"failing_at": 1, "error_code": "late", "error": "Too late."}
    await yards.state.pipelines.write(pipeline.id, TENANT, 1, failing)

    ended = await lead(yards, pipeline)

    assert ended.fields["status"] == "completed"
    folders = {key.removeprefix(_INBOX).split("/")[0] for key in await yards.storage.keys(_INBOX)}
    assert folders == {pipeline.id}
    [told] = ends_of(await yards.hear())
    assert (told["type"], json.loads(told["pipeline"])["error"]) == ("pipeline.completed", None)


async def test_a_leader_that_stood_still_while_another_led_loses_no_row(
    yards: Yards, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = await yards.pipeline("stale", *_STAGES)
    stale = await a_run(yards, pipeline.id)
    await stale.step(await record_of(yards, pipeline))
    monkeypatch.setattr(PipelineEnd, "finish", _dies)
    with pytest.raises(asyncio.CancelledError):
        await lead(yards, pipeline)
    monkeypatch.undo()

    await stale.step(await record_of(yards, pipeline))

    ended = await record_of(yards, pipeline)
    assert ended.fields["status"] == "completed"
    names = [row["custom_id"] for row in await lines(yards, ended, "output")]
    assert names == ["r2", "r4", "r6", "r8"]


async def test_a_leader_that_is_late_leaves_the_table_whole(
    yards: Yards, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = await _written(yards, "late", monkeypatch)
    before = {one: await yards.storage.get(one) for one in await yards.storage.keys(_INBOX)}

    async def unseen(*_: object) -> None:
        raise NotFoundError("It is not there yet.")

    # It looked before the other one wrote, and dies while it writes.
    monkeypatch.setattr("dispatcher.pipeline_table.read_success", unseen)
    monkeypatch.setattr("dispatcher.table_files.write_success", _dies)
    with pytest.raises(asyncio.CancelledError):
        await lead(yards, pipeline)

    assert f"{_INBOX}{pipeline.id}/_SUCCESS" in before
    keys = await yards.storage.keys(_INBOX)
    assert {one: await yards.storage.get(one) for one in keys} == before


@pytest.mark.parametrize(
    "made_up",
    [
        b"",
        b"no JSON",
        b"[" * 3_000_000,
        b'{"format": "csv", "bucket": "b", "prefix": "p/", "is_ours": true, "columns": []}',
    ],
    ids=["empty", "nonsense", "large", "of another table"],
)
async def test_what_a_tenant_writes_into_its_own_place_is_not_taken_for_a_table(
    made_up: bytes, yards: Yards
) -> None:
    output = {"format": "csv", "destination": f"s3://{yards.storage.bucket}/{_INBOX}"}
    pipeline = await yards.pipeline(f"made up {len(made_up)}", A_CALL, output=output)
    await yards.storage.put(f"{_INBOX}{pipeline.id}/_SUCCESS", made_up)

    ended = await lead(yards, pipeline)

    assert json.loads(ended.fields["table"])["rows"] == 9
    assert json.loads(await yards.storage.get(f"{_INBOX}{pipeline.id}/_SUCCESS"))["rows"] == 9


async def test_nothing_is_left_of_a_table_that_is_lost(
    yards: Yards, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(*_: object) -> AsyncGenerator[bytes | FileEnd, None]:
        yield b"n\n1\n"
        yield FileEnd(1)
        raise LostTableError(DIED)

    monkeypatch.setattr("dispatcher.pipeline_table.frames_of", lost)
    for name, place in (
        ("files", {}),
        ("own", {"destination": f"s3://{yards.storage.bucket}/{_INBOX}"}),
    ):
        output = {"format": "csv", **place}
        ended = await lead(yards, await yards.pipeline(f"lost {name}", A_CALL, output=output))

        assert json.loads(ended.fields["table"])["error"]["code"] == DIED.code
        table = ids.pipeline_file_id(ended.id, "table-0")
        assert await yards.state.files.many([table]) == []
    assert await yards.storage.keys(_INBOX) == []


async def table_files(yards: Yards, record: PipelineRecord) -> list[bytes]:
    """The files of the table."""
    shown = json.loads(record.fields["table"])
    files = [await yards.state.files.get(TENANT, one) for one in shown["file_ids"]]
    return [await yards.storage.get(file.key) for file in files]


@pytest.mark.parametrize(
    ("missing", "names", "failed"),
    [
        ("fail", ["r0", "r1", "r4", "r5"], 5),
        ("drop", ["r0", "r1", "r4", "r5"], 0),
        ("null", [f"r{number}" for number in range(9)], 0),
    ],
)
async def test_rows_are_joined_with_those_of_another_table_by_their_key(
    missing: str, names: list[str], failed: int, yards: Yards
) -> None:
    table = b"id,name\nt0,zero\nt2,two\nt2,again\n"
    file = await yards.upload("file-table", table)
    join = {"file_id": file.id, "format": "csv", "columns": {"label": "name"}, "missing": missing}

    pipeline = await yards.pipeline("join", {"join": {**join, "key": "id", "on": "text"}}, A_CALL)
    ended = await lead(yards, pipeline)

    rows = await lines(yards, ended, "output")
    assert [row["custom_id"] for row in rows] == names
    labels = {row["text"]: row["label"] for row in rows}
    assert (labels["t0"], labels["t2"]) == ("zero", "two")
    assert set(labels.values()) <= {"zero", "two", None}
    errors = await lines(yards, ended, "error")
    assert [error["error"]["code"] for error in errors] == ["no_match"] * failed


@pytest.mark.parametrize("format_", ["parquet", "jsonl"])
async def test_rows_get_those_of_another_table_whose_vectors_are_nearest(
    format_: str, yards: Yards
) -> None:
    vectors = [[float(n == column) for column in range(3)] for n in range(3)]
    table = [{"name": f"n{n}", "v": vector} for n, vector in enumerate(vectors)]
    table.append({"name": "none", "v": None})  # type: ignore[dict-item]  # it is left out
    body = b"".join(json.dumps(one).encode() + b"\n" for one in table)
    if format_ == "parquet":
        sink = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(table), sink)
        body = sink.getvalue()
    file = await yards.upload("file-vectors", body)
    # The texts are t0 to t4.
    asked = {"file_id": file.id, "format": format_, "columns": {"found": "name"}, "vector": "v"}
    embed = {"call": {**A_CALL["call"], "schema": _VECTOR}}
    top_k = {"top_k": {**asked, "query": "at", "k": 2, "metric": "dot", "into": "near"}}

    pipeline = await yards.pipeline("nearest", embed, top_k)
    answers = iter([[0.0, 2.0, 1.0], [0.0, 1.0]])
    said = {n: json.dumps({"at": next(answers, [3.0, 1.0, 2.0])}) for n in range(9)}
    ended = await lead(yards, pipeline, said=lambda row: _answered(said[row]))

    rows = {row["custom_id"]: row["near"] for row in await lines(yards, ended, "output")}
    assert len(rows) == 8
    assert rows["r0"] == [{"found": "n1", "score": 2.0}, {"found": "n2", "score": 1.0}]
    assert rows["r2"] == [{"found": "n0", "score": 3.0}, {"found": "n2", "score": 2.0}]
    [error] = await lines(yards, ended, "error")
    assert (error["custom_id"], error["stage"], error["error"]["code"]) == ("r1", 1, "no_vector")


@pytest.mark.parametrize(
    ("table", "code"),
    [
        ([{"v": [1.0]}, {"v": [1.0, 2.0]}], "other_dimensions"),
        ([{"v": "text"}], "no_vector"),
        ([{"v": None}], "no_vectors"),
    ],
)
async def test_a_table_without_vectors_that_can_be_compared_fails_the_pipeline(
    table: list[dict[str, Any]], code: str, yards: Yards
) -> None:
    file = await yards.upload("file-v", b"".join(json.dumps(one).encode() + b"\n" for one in table))
    top_k = {"file_id": file.id, "format": "jsonl", "columns": {"w": "v"}, "vector": "v"}
    stage = {"top_k": {**top_k, "query": "text", "k": 2, "into": "near"}}

    ended = await lead(yards, await yards.pipeline("fails", stage, A_CALL))

    assert (ended.fields["status"], ended.fields["error_code"]) == ("failed", code)


async def test_texts_are_cut_by_a_tokenizer_which_each_leader_reads(
    yards: Yards, tmp_path: Path
) -> None:
    file = (make_model(tmp_path / "model") / "tokenizer.json").read_bytes()
    split = {"split": {"column": "text", "tokens": 1, "into": "chunk", "model": "m"}}

    pipeline = await yards.pipeline("tokens", split, A_CALL, tokenizers={0: file})
    ended = await lead(yards, pipeline)

    rows = await lines(yards, ended, "output")
    # By its estimate, a text such as `t4` is one token; this tokenizer has two.
    assert sorted(row["custom_id"] for row in rows) == [
        f"r{n}#{m}" for n in range(9) for m in (0, 1)
    ]
    assert {row["chunk"] for row in rows} == {"t", *"01234"}


async def test_a_tokenizer_that_is_lost_fails_the_pipeline(yards: Yards) -> None:
    split = {"split": {"column": "text", "tokens": 1, "model": "m"}}
    pipeline = await yards.pipeline("lost", split, A_CALL, tokenizers={0: b"{}"})
    key = tokenizer_key(pipeline.id, pipeline.stored.tokenizers[0])
    await yards.storage.put(key, b"other")

    ended = await lead(yards, pipeline)

    assert (ended.fields["status"], ended.fields["error_code"]) == ("failed", "handover_lost")


async def test_what_was_handed_over_and_not_added_is_added_by_the_next_leader(
    yards: Yards, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = await yards.pipeline("between")
    monkeypatch.setattr("dispatcher.pipeline_edge.EdgeLog.add", _dies)
    run = await a_run(yards, pipeline.id)
    with pytest.raises(asyncio.CancelledError):
        await run.step(await record_of(yards, pipeline))
    monkeypatch.undo()
    [batch] = await yards.state.batches.many(pipeline.batch_ids)
    assert batch.number("total") == 0

    ended = await lead(yards, pipeline)

    assert ended.fields["status"] == "completed"
    assert len(await lines(yards, ended, "output")) == 9


async def test_a_damaged_part_runs_again_before_it_is_handed_on(yards: Yards) -> None:
    pipeline = await yards.pipeline("part")
    for _ in range(3):
        await (await a_run(yards, pipeline.id)).step(await record_of(yards, pipeline))
    [batch_id] = pipeline.batch_ids
    await yards.yard.run(batch_id, lambda _: _SAID)
    part = (await yards.state.slices.parts(batch_id))[0]
    await yards.storage.put(part.key, b"x" * len(await yards.storage.get(part.key)))

    ended = await lead(yards, pipeline)

    assert ended.fields["status"] == "completed"
    assert len(await lines(yards, ended, "output")) == 9


async def test_a_lost_redis_is_made_again_wherever_the_pipeline_is(
    yards: Yards, redis_server: servers.Redis
) -> None:
    running = await yards.pipeline("running", *_STAGES)
    ended = await lead(yards, await yards.pipeline("ended", *_STAGES))
    for _ in range(4):
        run = await a_run(yards, running.id)
        await run.step(await record_of(yards, running))
        await work(yards, running)
    before = await yards.state.pipelines.many([ended.id])
    await empty(redis_server)

    rebuild = Rebuild(yards.state, yards.storage, progress=lambda _step, _share: None)
    await rebuild.run()

    assert rebuild.counts["pipelines"] == 2
    [after] = await yards.state.pipelines.many([ended.id])
    assert after.fields == before[0].fields
    assert await yards.state.pipelines.live() == [running.id]
    again = await lead(yards, running)
    assert again.fields["status"] == "completed"
    assert len(await lines(yards, again, "output")) == 4


async def test_the_end_is_told_once_and_by_a_rebuild_again_with_the_same_words(
    yards: Yards, redis_server: servers.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = await yards.pipeline("told")
    monkeypatch.setattr("dispatcher.pipeline_end.crash.point", _dies_at("pipelines.end_written"))
    with pytest.raises(asyncio.CancelledError):
        await lead(yards, pipeline)
    monkeypatch.undo()
    assert ends_of(await yards.hear()) == []

    ended = await lead(yards, pipeline)
    # Somebody who did not know that it is told.
    again = ended.number("ended_at")
    fields = {"status": "completed"}
    await yards.state.pipelines.write(pipeline.id, TENANT, 1, fields, ended_at=again, told="{}")
    [told] = ends_of(await yards.hear())
    await empty(redis_server)
    await Rebuild(yards.state, yards.storage, progress=lambda _step, _share: None).run()

    [told_again] = ends_of(await yards.hear())
    assert told_again == told
    assert (told["type"], told["sequence"]) == ("pipeline.completed", "1")
    shown = json.loads(told["pipeline"])
    assert (shown["status"], shown["rows_read"], shown["rows"]) == ("completed", 9, 9)
    assert shown["request_counts"] == {"total": 9, "completed": 9, "failed": 0}
    # What its stages handed over is swept, although the Redis that knew of it is lost.
    redis: Redis[str] = Redis.from_url(redis_server.url, decode_responses=True)
    swept_at = await redis.zscore(f"{NAMESPACE}garbage", edges_folder(pipeline.id))
    await redis.aclose()
    assert swept_at == again + DAY_SECONDS


async def test_an_end_of_long_ago_is_not_told_by_a_rebuild(yards: Yards) -> None:
    long_ago = int(time.time()) - EVENT_HISTORY_SECONDS - 60

    await yards.state.pipelines.write(
        "pipeline_old", TENANT, 1, {"status": "expired"}, ended_at=long_ago, told="{}"
    )

    assert ends_of(await yards.hear()) == []


def ends_of(heard: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The events of pipelines."""
    return [one for one in heard if one["type"].startswith("pipeline.")]


def _dies_at(wanted: str) -> Callable[[str], None]:
    def point(name: str) -> None:
        if name == wanted:
            raise asyncio.CancelledError

    return point


async def test_a_damaged_handover_fails_its_pipeline(yards: Yards) -> None:
    pipeline = await yards.pipeline("damaged", *_STAGES)
    for _ in range(3):
        await (await a_run(yards, pipeline.id)).step(await record_of(yards, pipeline))
        await work(yards, pipeline)
    key = handover_key(pipeline.id, 0, 0)
    body = await yards.storage.get(key)
    await yards.storage.put(key, body[:-9] + b"x" + body[-8:])

    ended = await lead(yards, pipeline)

    assert (ended.fields["status"], ended.fields["error_code"]) == ("failed", "handover_lost")
    statuses = {one.status for one in await yards.state.batches.many(pipeline.batch_ids)}
    assert statuses <= FINAL


async def test_a_pipeline_whose_declaration_is_lost_fails(yards: Yards) -> None:
    pipeline = await yards.pipeline("undeclared")
    await yards.storage.put(pipeline_key(pipeline.id), b"{}")
    keeper = PipelineKeeper(
        yards.state, yards.storage, yards.catalog, yards.additions(), output_seconds=3600
    )
    keeping = asyncio.create_task(keeper.run())

    async def has_ended() -> bool:
        await work(yards, pipeline)
        return (await record_of(yards, pipeline)).has_ended

    await eventually(has_ended, 60)
    await end(keeping)

    ended = await record_of(yards, pipeline)
    assert (ended.fields["status"], ended.fields["error_code"]) == ("failed", "declaration_lost")


async def test_pipelines_that_wait_for_room_hold_few_processes(yards: Yards) -> None:
    await yards.state.tenants.put(TENANT, TenantSettings(enqueued_requests=4))
    pipelines = [await yards.pipeline(f"wait{n}", rows=60_000) for n in range(6)]
    keeper = PipelineKeeper(
        yards.state, yards.storage, yards.catalog, yards.additions(), output_seconds=3600, held=2
    )
    keeping = asyncio.create_task(keeper.run())

    async def have_read() -> bool:
        found = [await record_of(yards, one) for one in pipelines]
        return [one.fields.get("read") for one in found] == ["2000"] * len(pipelines)

    try:
        await eventually(have_read, 60)
        await eventually(lambda: len(below_this(_RENDERER)) <= 2, 60)
    finally:
        await end(keeping)
    assert not below_this(_RENDERER)


async def test_nothing_is_left_of_a_pipeline_that_is_forgotten(yards: Yards) -> None:
    ended = await lead(yards, await yards.pipeline("old"))

    await forget_pipelines(yards.state, yards.storage, seconds=-1)

    assert await yards.state.pipelines.many([ended.id]) == []
    assert await yards.storage.keys(pipeline_folder(ended.id)) == []
    assert await yards.state.pipelines.page(TENANT, after=None, limit=9) == ([], False)


async def test_handovers_of_an_ended_pipeline_are_swept(yards: Yards) -> None:
    ended = await lead(yards, await yards.pipeline("swept"))

    assert await yards.storage.keys(edge_folder(ended.id, 0))
    [*_, last] = await yards.state.survey.will_be_swept([f"{pipeline_folder(ended.id)}edges/"])
    assert last == f"{pipeline_folder(ended.id)}edges/"


async def _dies(*_: object) -> None:
    raise asyncio.CancelledError
