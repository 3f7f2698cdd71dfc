import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from gateway.settings import GatewaySettings
from shared.state import State
from shared.storage import Storage
from tests.batches import claimed, in_progress, part
from tests.integration.gateway.conftest import Caller, Gateway, calling, running
from tests.models import make_model

CHAT = "/v1/chat/completions"
LANE = "counted@cpu"


@pytest.fixture(scope="module")
def gateway(
    settings: GatewaySettings, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Gateway]:
    """A gateway whose catalog has one model with its files on this machine, and one without."""
    folder = tmp_path_factory.mktemp("dry-run")
    model = make_model(folder / "model", max_tokens=64)
    catalog = folder / "catalog.yaml"
    catalog.write_text(
        "pools:\n  cpu: {resources: {CPU: 1}}\nmodels:\n"
        f"  counted: {{pools: [cpu], source: {model}}}\n"
        f"  roomy: {{pools: [cpu], source: {model}, engine: {{max_model_len: 4096}}}}\n"
        "  elsewhere: {pools: [cpu], engine: {max_model_len: 100}}\n"
    )
    with running(
        settings.model_copy(update={"catalog": catalog, "max_rows_per_batch": 3000})
    ) as gateway:
        yield gateway


@pytest.fixture
async def acme(gateway: Gateway, gateway_state: State) -> AsyncIterator[Caller]:
    async with calling(gateway, gateway_state) as caller:
        yield caller


async def test_a_dry_run_reports_everything_and_creates_nothing(
    acme: Caller, bucket: Storage
) -> None:
    file_id = await _upload(acme, *[_line(str(number)) for number in range(3)], _line("long", 90))
    objects = await bucket.keys("")

    answer = await _dry_run(acme, file_id)

    assert answer.status_code == 200
    found = answer.json()
    assert (found["object"], found["valid"], found["errors"]) == ("batch.dry_run", False, None)
    assert (found["refused"], found["more_refused"]) == (None, 0)
    assert (found["rows"], found["model"], found["lane"]) == (4, "counted", LANE)
    tokens = found["tokens"]
    assert (tokens["counted_by"], tokens["rows_counted"]) == ("tokenizer", 4)
    assert not tokens["is_estimate"]
    context = found["context_length"]
    assert (context["max_model_len"], context["rows_checked"]) == (64, 4)
    assert [bad["line"] for bad in context["violations"]] == [4]
    assert found["forecast"]["finish_at"] is None
    assert (await acme.http.get("/v1/batches")).json()["data"] == []
    assert await bucket.keys("") == objects


async def test_the_sdk_makes_one_by_an_extra_field(acme: Caller) -> None:
    file_id = await _upload(acme, _line("a"))

    found: Any = await acme.openai.batches.create(
        input_file_id=file_id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        extra_body={"dry_run": True},
    )

    assert (found.object, found.rows, found.lane) == ("batch.dry_run", 1, LANE)


async def test_with_dry_run_false_a_batch_is_created(acme: Caller) -> None:
    file_id = await _upload(acme, _line("a"))

    answer = await _dry_run(acme, file_id, dry_run=False)

    assert answer.json()["object"] == "batch"
    assert len((await acme.http.get("/v1/batches")).json()["data"]) == 1


async def test_a_file_whose_requests_would_all_run_is_valid(acme: Caller) -> None:
    found = (await _dry_run(acme, await _upload(acme, _line("a"), _line("b")))).json()

    assert found["valid"]


async def test_what_the_engine_would_refuse_is_reported_with_its_line_and_field(
    acme: Caller,
) -> None:
    file_id = await _upload(
        acme, _line("a"), _line("b", max_tokens=-1), _line("c", temperature="hot", max_tokens=7)
    )

    found = (await _dry_run(acme, file_id)).json()

    assert (found["valid"], found["errors"], found["more_refused"]) == (False, None, 0)
    assert [(bad["line"], bad["param"]) for bad in found["refused"]["data"]] == [
        (2, "body.max_tokens"),
        (3, "body.temperature"),
    ]
    assert (found["rows"], found["tokens"]["output"]) == (3, 5)


async def test_media_may_come_from_the_tenants_own_places_in_s3(
    acme: Caller, bucket: Storage
) -> None:
    places = {
        "own": f"inbox/{acme.tenant}/a.png",
        "another's": "inbox/globex/a.png",
        "ours": "batches/x",
    }
    lines = [
        _line(name, messages=[{"role": "user", "content": [_image(f"s3://{bucket.bucket}/{key}")]}])
        for name, key in places.items()
    ]
    file_id = await _upload(acme, *lines)

    found = (await _dry_run(acme, file_id)).json()

    assert [(bad["line"], bad["param"]) for bad in found["refused"]["data"]] == [
        (2, "body.messages.0.content.0.image_url"),
        (3, "body.messages.0.content.0.image_url"),
    ]


async def test_bad_lines_are_those_of_the_batch_and_cost_no_batch(acme: Caller) -> None:
    file_id = await _upload(acme, _line("a"), b"{", _line("a"), _line("b", model="nobody"))

    found = (await _dry_run(acme, file_id)).json()

    assert not found["valid"]
    assert [(bad["line"], bad["code"]) for bad in found["errors"]["data"]] == [
        (2, "invalid_json_line"),
        (3, "duplicate_custom_id"),
        (4, "model_not_found"),
    ]
    assert (found["rows"], found["more_errors"]) == (4, 0)


async def test_a_thousand_bad_lines_are_listed_and_the_others_counted(acme: Caller) -> None:
    file_id = await _upload(acme, *[b"{"] * 1200)

    found = (await _dry_run(acme, file_id)).json()

    assert (len(found["errors"]["data"]), found["more_errors"]) == (1000, 200)
    assert (found["model"], found["lane"], found["forecast"]) == (None, None, None)


async def test_more_rows_than_a_batch_may_have_are_one_error(acme: Caller) -> None:
    file_id = await _upload(acme, *[_line(str(number)) for number in range(3001)])

    found = (await _dry_run(acme, file_id)).json()

    assert [bad["code"] for bad in found["errors"]["data"]] == ["too_many_tasks"]


async def test_a_model_whose_files_are_elsewhere_is_estimated(acme: Caller) -> None:
    file_id = await _upload(acme, _line("a", model="elsewhere"))

    found = (await _dry_run(acme, file_id)).json()

    assert (found["valid"], found["tokens"]["counted_by"]) == (True, "bytes")
    assert found["tokens"]["is_estimate"]
    assert found["tokens"]["input"] > 0
    assert (found["context_length"]["max_model_len"], found["context_length"]["rows_checked"]) == (
        100,
        0,
    )


async def test_the_lane_s_pace_and_what_is_ahead_make_the_forecast(
    acme: Caller, gateway_state: State
) -> None:
    await gateway_state.lanes.open_job(LANE, "", "job-1")
    await gateway_state.lanes.beat(LANE, "job-1", rows_wanted=1, rate=2.0, token_rate=200.0)
    [claim, _] = await claimed(gateway_state, lane=LANE)
    assert await gateway_state.claims.commit(claim, part(claim)) == "ok"
    await in_progress(gateway_state, slices=3, lane=LANE, tenant=acme.tenant)
    file_id = await _upload(acme, _line("a"), _line("b"))

    before = time.time()
    found = (await _dry_run(acme, file_id)).json()
    forecast = found["forecast"]

    assert (forecast["rows_ahead"], forecast["others"]) == (30, "under 100")
    assert forecast["rows_per_second"] == 2.0
    assert before - 1 < forecast["finish_at"] < forecast["finish_p80_at"] < before + 600
    assert forecast["rests_on"] == {"pace": "lane", "batches": 0, "start_seconds": 0}
    assert found["warnings"] == []


async def test_a_forecast_beyond_the_window_warns(acme: Caller, gateway_state: State) -> None:
    await gateway_state.lanes.open_job(LANE, "", "job-1")
    await gateway_state.lanes.beat(LANE, "job-1", rows_wanted=1, rate=1e-5, token_rate=1e-4)
    file_id = await _upload(acme, _line("a"), _line("b"))

    found = (await _dry_run(acme, file_id)).json()

    assert [one["code"] for one in found["warnings"]] == ["deadline_at_risk"]


async def test_another_tenant_s_file_is_not_there(acme: Caller, gateway: Gateway) -> None:
    state = State(gateway.settings.redis_url.get_secret_value())
    async with calling(gateway, state) as stranger:
        answer = await _dry_run(stranger, await _upload(acme, _line("a")))
    await state.close()

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "file_id"


async def test_an_input_whose_object_is_gone_is_an_error_of_the_dry_run(
    acme: Caller, gateway_state: State, bucket: Storage
) -> None:
    file_id = await _upload(acme, _line("a"))
    await bucket.remove([(await gateway_state.files.get(acme.tenant, file_id)).key])

    found = (await _dry_run(acme, file_id)).json()

    assert [bad["code"] for bad in found["errors"]["data"]] == ["invalid_request"]
    assert (found["rows"], found["model"]) == (0, None)


async def test_a_large_input_is_sampled_while_others_are_answered(acme: Caller) -> None:
    # Short enough to fit for certain: only the sample is tokenized, however fast the machine is.
    rows = 2_800
    lines = [_line(str(number), 800, model="roomy") for number in range(rows)]
    file_id = await _upload(acme, *lines)
    pauses = []

    running_dry = asyncio.create_task(_dry_run(acme, file_id))
    while not running_dry.done():
        began = time.monotonic()
        assert (await acme.http.get("/healthz")).status_code == 200
        pauses.append(time.monotonic() - began)
    found = (await running_dry).json()

    tokens = found["tokens"]
    assert (found["rows"], tokens["is_estimate"]) == (rows, True)
    assert 0 < tokens["rows_counted"] < rows
    assert f"{tokens['rows_counted']} of {rows} rows" in tokens["note"]
    assert found["context_length"]["rows_checked"] >= tokens["rows_counted"]
    assert len(pauses) > 3
    assert max(pauses) < 3


async def test_a_tenant_with_many_dry_runs_waits_for_its_own(
    acme: Caller, gateway: Gateway, gateway_state: State
) -> None:
    large = await _upload(acme, *[_line(str(number), 800, model="roomy") for number in range(500)])
    many = [asyncio.create_task(_dry_run(acme, large)) for _ in range(8)]

    async with calling(gateway, gateway_state) as other:
        file_id = await _upload(other, _line("a"))
        found = await _dry_run(other, file_id)
    ended = sum(one.done() for one in many)

    assert found.status_code == 200
    assert ended < 4
    assert {(await one).status_code for one in many} == {200}


async def test_the_schema_says_what_it_is(acme: Caller) -> None:
    create = (await acme.http.get("/openapi.json")).json()["paths"]["/v1/batches"]["post"]

    body = create["requestBody"]["content"]["application/json"]["schema"]
    answers = create["responses"]["200"]["content"]["application/json"]["schema"]["anyOf"]
    assert "extra_body" in create["x-batchyard"]["dry_run"]
    assert body["properties"]["dry_run"] == {
        "default": False,
        "title": "Dry Run",
        "type": "boolean",
    }
    assert {"$ref": "#/components/schemas/DryRun"} in answers


async def test_lines_may_name_their_models_and_be_bad_alone_where_operators_allow_it(
    settings: GatewaySettings, gateway: Gateway, gateway_state: State
) -> None:
    allowed = {"mixed_batches": True, "strict_input": False}
    catalog = gateway.settings.catalog
    with running(settings.model_copy(update={"catalog": catalog, **allowed})) as other:
        async with calling(other, gateway_state) as acme:
            file_id = await _upload(
                acme, _line("a"), _line("b", model="roomy"), _line("c"), _line("d", 90)
            )
            for lane, rate in ((LANE, 2.0), ("roomy@cpu", 1.0)):
                await gateway_state.lanes.open_job(lane, "", "job")
                await gateway_state.lanes.beat(lane, "job", rows_wanted=1, rate=rate)

            found = (await _dry_run(acme, file_id)).json()
            file_id = await _upload(acme, _line("a"), b"{", _line("a"), _line("b", model="nobody"))
            bad = (await _dry_run(acme, file_id)).json()

    assert (found["valid"], found["model"], found["lane"], found["rows"]) == (False, None, None, 4)
    assert [(one["name"], one["rows"]) for one in found["lanes"]] == [(LANE, 3), ("roomy@cpu", 1)]
    assert found["forecast"]["finish_at"] == max(one["finish_at"] for one in found["lanes"])
    assert [bad["line"] for bad in found["context_length"]["violations"]] == [4]
    assert found["context_length"]["max_model_len"] is None
    assert (found["tokens"]["rows_counted"], found["tokens"]["is_estimate"]) == (4, False)
    assert (bad["valid"], bad["errors"], bad["rows"]) == (False, None, 4)
    assert [(one["code"], one["line"]) for one in bad["refused"]["data"]] == [
        ("invalid_json_line", 2),
        ("duplicate_custom_id", 3),
        ("model_not_found", 4),
    ]


async def _dry_run(caller: Caller, file_id: str, **changes: Any) -> httpx.Response:
    params = {
        "input_file_id": file_id,
        "endpoint": CHAT,
        "completion_window": "24h",
        "dry_run": True,
        **changes,
    }
    return await caller.http.post("/v1/batches", json=params)


async def _upload(caller: Caller, *lines: bytes) -> str:
    body = b"\n".join(lines)
    return (await caller.openai.files.create(file=("in.jsonl", body), purpose="batch")).id


def _line(custom_id: str, words: int = 1, *, model: str = "counted", **changes: Any) -> bytes:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "fox " * words}],
        "max_tokens": 5,
        **changes,
    }
    request = {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": body}
    return json.dumps(request).encode()


def _image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}
