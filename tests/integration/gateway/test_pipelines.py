"""Pipelines as the gateway creates them, with a model whose files are on its machine."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from gateway.settings import GatewaySettings
from shared.ledger.pipelines import read_tokenizer
from shared.storage import Storage
from shared.submission.pipelines import read_pipeline
from tests.integration.gateway.conftest import Caller, Gateway, running
from tests.models import make_model

_CALL = {
    "endpoint": "/v1/chat/completions",
    "template": {"model": "counted", "messages": [{"role": "user", "content": "{{ text }}"}]},
}


@pytest.fixture(scope="module")
def gateway(
    settings: GatewaySettings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("pipelines")
    model = make_model(folder / "model")
    catalog = folder / "catalog.yaml"
    catalog.write_text(
        "pools:\n  cpu: {resources: {CPU: 1}}\nmodels:\n"
        f"  counted: {{pools: [cpu], source: {model}}}\n"
        "  elsewhere: {pools: [cpu]}\n"
    )
    with running(settings.model_copy(update={"catalog": catalog})) as gateway:
        yield gateway


async def _create(
    acme: Caller,
    bucket: Storage,
    *stages: dict[str, Any],
    rows: str = "text,v\none,1\n",
    **more: Any,
) -> httpx.Response:
    key = f"inbox/{acme.tenant}/a.csv"
    await bucket.put(key, rows.encode())
    source = {"objects": f"s3://{bucket.bucket}/{key}", "columns": ["text"]}
    body = {"input": source, "stages": [*stages, {"call": _CALL}], **more}
    return await acme.http.post("/v1/pipelines", json=body)


def _split(**changes: Any) -> dict[str, Any]:
    return {"split": {"column": "text", "tokens": 5, **changes}}


async def test_a_pipeline_keeps_the_tokenizer_that_it_counts_with(
    acme: Caller, bucket: Storage, tmp_path_factory: pytest.TempPathFactory
) -> None:
    made = await _create(acme, bucket, _split(), _split(model="counted"))

    assert made.status_code == 200, made.text
    pipeline = await read_pipeline(bucket, made.json()["id"])
    [stage] = pipeline.stored.tokenizers
    body = await read_tokenizer(bucket, pipeline.id, pipeline.stored.tokenizers[stage])
    same = make_model(tmp_path_factory.mktemp("same")) / "tokenizer.json"
    # As the engine loads it, which writes the same in another form.
    assert (stage, json.loads(body)) == (1, json.loads(same.read_bytes()))


@pytest.mark.parametrize(
    ("stage", "param", "code"),
    [
        (_split(model="elsewhere"), "stages[0].split.model", "no_tokenizer"),
        (_split(model="nothing"), "stages[0].split.model", "model_not_found"),
    ],
)
async def test_a_tokenizer_that_is_not_here_is_told_at_once(
    stage: dict[str, Any], param: str, code: str, acme: Caller, bucket: Storage
) -> None:
    error = (await _create(acme, bucket, stage)).json()["error"]

    assert (error["param"], error["code"]) == (param, code)


async def test_a_dry_run_shows_what_the_first_call_would_ask(acme: Caller, bucket: Storage) -> None:
    stages = [
        _split(model="counted", into="chunk"),
        {"filter": "'x' not in chunk"},
        {"call": _CALL},
    ]
    key = f"inbox/{acme.tenant}/dry.csv"
    await bucket.put(key, b"text,v\none,1\nxx,2\ntwo words,3\n")
    source = {"objects": f"s3://{bucket.bucket}/{key}", "columns": ["text"]}
    before = await bucket.keys("")

    answer = await acme.http.post(
        "/v1/pipelines", json={"input": source, "stages": stages, "dry_run": True}
    )

    found = answer.json()
    assert (answer.status_code, found["object"], found["valid"]) == (200, "pipeline.dry_run", True)
    assert (found["rows_read"], found["errors"]) == (3, None)
    assert found["dropped"] > 0
    assert found["columns"] == ["custom_id", "text", "chunk", "answer"]
    call = found["first_call"]
    assert call["rendered"][0]["custom_id"] == "row-1#0"
    assert call["rendered"][0]["body"]["messages"] == [{"role": "user", "content": "one"}]
    assert call["rows"] == call["tokens"]["rows_counted"] == 3
    assert call["tokens"]["input"] > 0
    assert await bucket.keys("") == before
    assert (await acme.http.get("/v1/pipelines")).json()["data"] == []


async def test_a_dry_run_tells_which_rows_fail_before_the_first_call(
    acme: Caller, bucket: Storage
) -> None:
    answer = await _create(acme, bucket, {"filter": "text + 1"}, dry_run=True)

    found = answer.json()
    assert not found["valid"]
    [error] = found["errors"]["data"]
    assert (error["param"], error["code"]) == ("stages[0]", "invalid_row")
    assert found["first_call"] is None


async def test_a_dry_run_takes_no_more_rows_than_a_pipeline_takes_together(
    acme: Caller, bucket: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.pipeline_dry_run._SAMPLED_BYTES", 1)

    found = (await _create(acme, bucket, dry_run=True, rows="text,v\none,1\ntwo,2\n")).json()

    assert (found["rows_read"], found["first_call"]["rows"]) == (1, 1)


async def test_a_dry_run_that_takes_too_long_says_so(
    acme: Caller, bucket: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.pipeline_dry_run._MAX_SECONDS", 0.01)

    answer = await _create(acme, bucket, dry_run=True)

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "dry_run_too_slow")


async def test_a_table_that_cannot_be_read_is_named_by_its_stage(
    acme: Caller, bucket: Storage
) -> None:
    top_k = {"file_id": "file-no", "columns": ["a"], "vector": "v", "query": "text", "k": 1}

    error = (await _create(acme, bucket, {"top_k": {**top_k, "into": "near"}})).json()["error"]

    assert error["param"].startswith("stages[0].top_k")
