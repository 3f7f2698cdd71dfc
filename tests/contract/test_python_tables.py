"""`batchyard.run` against a real gateway and dispatcher: tables in, tables out."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Unpack

import pandas as pd  # type: ignore[import-untyped]  # its stubs are a package of their own
import pyarrow as pa
import pytest
from pydantic import BaseModel

import batchyard
from tests.contract.conftest import EMBEDDER, MODEL, Caller
from tests.contract.engine import REFUSE, WAIT
from tests.contract.user_commands import Command, running_batch
from tests.eventually import eventually

_MADE = ["answer", "finish_reason", "input_tokens", "output_tokens", "error_code", "error"]


class Verdict(BaseModel):
    """The simulated engine answers in capitals."""

    LABEL: str
    SCORE: int


@pytest.fixture
def options(acme: Caller) -> batchyard.Options:
    return {
        "base_url": f"{acme.yard.url}/v1",
        "api_key": acme.key,
        "model": MODEL,
        "progress": False,
    }


def _with(options: batchyard.Options, **more: Unpack[batchyard.Options]) -> batchyard.Options:
    return {**options, **more}


def _batches(caller: Caller) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = caller.http.get("/v1/batches").json()["data"]
    return found


def test_a_dataframe_comes_back_with_its_answers_in_its_order(options: batchyard.Options) -> None:
    frame = pd.DataFrame(
        {"id": [7, 8, 9], "text": ["a", REFUSE, "c"]}, index=pd.Index(["x", "y", "z"], name="k")
    )

    found = batchyard.run(frame, "{{ text }}", **options)

    pd.testing.assert_frame_equal(found[["id", "text"]], frame)
    assert list(found.columns) == ["id", "text", *_MADE]
    assert found["answer"].iloc[[0, 2]].tolist() == ["A", "C"]
    assert found["error_code"].iloc[1] == "context_length_exceeded"
    assert found["output_tokens"].dtype == pd.Int64Dtype()
    assert found["output_tokens"].isna().tolist() == [False, True, False]


def test_an_arrow_table_has_typed_fields_of_a_pydantic_model(options: batchyard.Options) -> None:
    said = [{"label": "yes", "score": 3}, {"label": "no"}, {"label": "no", "score": -1}]
    table = pa.table({"said": [json.dumps(one) for one in said]})

    found = batchyard.run(table, "{{ said }}", **_with(options, schema=Verdict))

    assert found["LABEL"].to_pylist() == ["YES", None, "NO"]
    assert found["SCORE"].to_pylist() == [3, None, -1]
    assert found.schema.field("SCORE").type == pa.int64()
    assert found["error_code"].to_pylist() == [None, "invalid_answer", None]
    assert found["said"].to_pylist() == table["said"].to_pylist()


def test_polars_gets_polars_back(options: batchyard.Options) -> None:
    import polars as pl

    frame = pl.DataFrame({"text": ["a", "b"], "n": [1, 2]})

    found = batchyard.run(frame, "{{ text }}", **options)

    assert isinstance(found, pl.DataFrame)
    assert found["n"].to_list() == [1, 2]
    assert found["answer"].to_list() == ["A", "B"]


def test_dictionaries_need_no_library_of_tables(acme: Caller, tmp_path: Path) -> None:
    program = """
from tests.alone import forbid_others
forbid_others()
import batchyard
rows = [{"text": "a"}, {"text": "b", "n": 2}]
print(batchyard.run(rows, "{{ text }}", model="tiny", progress=False))
"""

    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env=Command(acme, tmp_path).environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
    found = eval(ended.stdout)  # noqa: S307  # what our own program has printed
    assert [(one["text"], one["answer"]) for one in found] == [("a", "A"), ("b", "B")]
    assert found[1]["n"] == 2


@pytest.mark.parametrize("suffix", ["parquet", "arrow", "csv", "jsonl"])
def test_a_path_is_sent_as_it_is(options: batchyard.Options, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"in.{suffix}"
    frame = pd.DataFrame({"id": ["007", "008"], "text": ["a,b", 'c"d']})
    match suffix:
        case "parquet":
            frame.to_parquet(path)
        case "arrow":
            frame.to_feather(path)
        case "csv":
            frame.to_csv(path, index=False)
        case _:
            frame.to_json(path, orient="records", lines=True)

    found = batchyard.run(path, "{{ text }}", **options)

    rows = found if suffix == "jsonl" else found.to_pylist()
    assert [(one["id"], one["answer"]) for one in rows] == [("007", "A,B"), ("008", 'C"D')]


def test_embeddings_are_lists(options: batchyard.Options) -> None:
    table = pa.table({"text": ["a", "b"]})
    asked = _with(options, endpoint="/v1/embeddings", model=EMBEDDER)

    found = batchyard.run(table, "{{ text }}", **asked)
    chained = batchyard.run(found, "{{ text }}", **_with(options, prefix="next_"))

    assert found["embedding"].to_pylist() == [[0.5, -0.5]] * 2
    assert chained["next_answer"].to_pylist() == ["A", "B"]


def test_a_column_that_is_there_already_is_not_replaced(options: batchyard.Options) -> None:
    with pytest.raises(batchyard.InvalidInputError, match="prefix"):
        batchyard.run([{"answer": "a"}], "{{ answer }}", **options)


def test_the_same_call_takes_up_the_same_batch(
    acme: Caller, options: batchyard.Options, capfd: pytest.CaptureFixture[str]
) -> None:
    frame = pd.DataFrame({"text": ["a", "b"]})

    first = batchyard.run(frame, "{{ text }}", **options)
    second = batchyard.run(frame.copy(), "{{ text }}", **_with(options, progress=True))
    once = len(_batches(acme))
    batchyard.run(frame, "{{ text }}", **_with(options, again=True))
    batchyard.run(frame, "{{ text }}!", **options)

    pd.testing.assert_frame_equal(first, second)
    assert once == 1
    assert len(_batches(acme)) == 3
    assert "Taking up batch_" in capfd.readouterr().err


@pytest.mark.parametrize("columns", [None, ["answer"]])
def test_failed_rows_are_an_error_only_if_that_is_asked_for(
    options: batchyard.Options, columns: list[str] | None
) -> None:
    asked = _with(options, check=True)
    if columns is not None:
        asked["columns"] = columns

    with pytest.raises(batchyard.RowsFailed, match="1 rows") as raised:
        batchyard.run([{"text": "a"}, {"text": REFUSE}], "{{ text }}", **asked)

    assert [row["answer"] for row in raised.value.table] == ["A", None]


@pytest.mark.parametrize("kind", [list, pa.Table.from_pylist])
def test_an_answer_that_does_not_fit_is_a_failed_row(
    options: batchyard.Options, kind: Callable[[list[dict[str, str]]], Any]
) -> None:
    said = [{"label": "yes", "score": 3}, {"label": "no"}]
    rows = kind([{"said": json.dumps(one)} for one in said])

    with pytest.raises(batchyard.RowsFailed, match="1 rows"):
        batchyard.run(rows, "{{ said }}", **_with(options, schema=Verdict, check=True))


def test_an_answer_that_does_not_fit_is_asked_again(
    acme: Caller, options: batchyard.Options
) -> None:
    asked = _with(options, schema=Verdict, retries=2, body={"temperature": 1})

    batchyard.run([{"said": "no JSON"}], "{{ said }}", **asked)

    assert [batch["asked_again"] for batch in _batches(acme)] == [2]


def test_a_batch_that_fails_says_which_column_is_missing(options: batchyard.Options) -> None:
    with pytest.raises(batchyard.BatchFailedError, match="'word'") as raised:
        batchyard.run([{"text": "a"}], "{{ word }}", **options)

    assert raised.value.problems[0]["code"] == "unknown_column"


def test_a_handle_says_how_far_its_batch_is(acme: Caller, options: batchyard.Options) -> None:
    batch = batchyard.submit([{"text": WAIT}, {"text": "b"}], "{{ text }}", **options)
    running_batch(acme, done=0)
    before = batch.status()
    batch.cancel()
    found = batch.result()

    assert before == "in_progress"
    assert batch.status() == "cancelled"
    assert [row["text"] for row in found] == [WAIT, "b"]
    assert found[0]["error_code"] == "batch_cancelled"


async def test_calls_wait_side_by_side_and_a_cancelled_one_leaves_its_batch(
    acme: Caller, options: batchyard.Options
) -> None:
    waiting = asyncio.create_task(batchyard.arun([{"text": WAIT}], "{{ text }}", **options))
    await eventually(lambda: any(one["status"] == "in_progress" for one in _batches(acme)))
    [batch] = _batches(acme)
    acme.made.append(batch["id"])

    found = await asyncio.gather(
        *(batchyard.arun([{"text": f"a{n}"}], "{{ text }}", **options) for n in range(8))
    )
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    assert [rows[0]["answer"] for rows in found] == [f"A{n}" for n in range(8)]
    assert acme.batch(batch["id"])["status"] == "in_progress"
    acme.yard.engine.release(batch["id"])
    assert (await batchyard.arun([{"text": WAIT}], "{{ text }}", **options))[0]["answer"]
    assert len(_batches(acme)) == 9


def test_ctrl_c_leaves_the_batch_running_and_says_how_to_go_on(
    acme: Caller, tmp_path: Path
) -> None:
    program = f"""
import batchyard
batchyard.run([{{"text": {WAIT!r}}}], "{{{{ text }}}}", model="{MODEL}")
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        env=Command(acme, tmp_path).environment(),
        stderr=subprocess.PIPE,
        text=True,
    )
    batch = running_batch(acme)
    assert process.stderr is not None
    # It says so once it waits.
    assert batch["id"] in process.stderr.readline()
    process.send_signal(2)
    _, err = process.communicate(timeout=240)

    assert process.returncode != 0
    assert f"Left running: {batch['id']}" in err
    assert f"batchyard cancel {batch['id']}" in err
    assert acme.batch(batch["id"])["status"] == "in_progress"
