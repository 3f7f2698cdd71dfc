"""Tenants' LoRA adapters through a real gateway: their files, their names, and live calls."""

import json
from typing import Any

import pytest
from openai import BadRequestError

from shared.state import State
from shared.storage import Storage
from tests.adapters import an_adapter
from tests.integration.gateway.conftest import Caller, Start
from tests.live_replica import MISFIT

_CHAT = "/v1/chat/completions"


async def _upload(caller: Caller, content: bytes | None = None) -> str:
    """The name under which the tenant calls its adapter."""
    file = await caller.openai.files.create(
        file=("mine.tar", content or an_adapter()),
        purpose="adapter",  # type: ignore[arg-type]  # OpenAI has none
    )
    return f"tiny:{file.id}"


def _body(model: str) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "hello"}]}


async def test_an_adapter_is_a_model_of_its_tenant_alone(acme: Caller, globex: Caller) -> None:
    name = await _upload(acme)

    mine = [model.id async for model in acme.openai.models.list()]
    theirs = [model.id async for model in globex.openai.models.list()]
    assert set(mine) - set(theirs) == {name}
    assert (await acme.openai.models.retrieve(name)).id == name
    foreign = await globex.http.get(f"/v1/models/{name}")
    unknown = await globex.http.get("/v1/models/tiny:file-none")
    assert foreign.status_code == unknown.status_code == 404
    assert foreign.text.replace(name, "tiny:file-none") == unknown.text

    await acme.openai.files.delete(name.partition(":")[2])
    assert name not in [model.id async for model in acme.openai.models.list()]
    assert (await acme.http.get(f"/v1/models/{name}")).status_code == 404


async def test_its_bytes_count_as_stored(acme: Caller, gateway_state: State) -> None:
    name = await _upload(acme)

    assert await gateway_state.files.stored_bytes(acme.tenant) == len(an_adapter())
    await acme.openai.files.delete(name.partition(":")[2])
    assert await gateway_state.files.stored_bytes(acme.tenant) == 0


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x80\x04pickle", "not a tar archive"),
        (an_adapter(r=64), "from 1 to 16"),
        (an_adapter(width=4096), "at most 100000"),
    ],
)
async def test_what_is_no_adapter_is_refused_and_not_kept(
    acme: Caller, bucket: Storage, content: bytes, words: str
) -> None:
    with pytest.raises(BadRequestError, match=words):
        await _upload(acme, content)

    assert [file async for file in acme.openai.files.list()] == []
    assert await bucket.keys(f"files/{acme.tenant}/") == []


async def test_an_adapter_may_come_in_parts(acme: Caller) -> None:
    for content, is_good in ((an_adapter(), True), (an_adapter()[:4_000], False)):
        upload = await acme.openai.uploads.create(
            bytes=len(content),
            filename="a.tar",
            mime_type="application/x-tar",
            purpose="adapter",  # type: ignore[arg-type]  # OpenAI has none
        )
        part = await acme.openai.uploads.parts.create(upload.id, data=content)
        if is_good:
            done = await acme.openai.uploads.complete(upload.id, part_ids=[part.id])
            assert done.file is not None
            assert f"tiny:{done.file.id}" in [one.id async for one in acme.openai.models.list()]
        else:
            with pytest.raises(BadRequestError, match="cut off"):
                await acme.openai.uploads.complete(upload.id, part_ids=[part.id])


async def test_a_live_call_brings_its_adapter_to_the_replica(
    acme: Caller, globex: Caller, start: Start
) -> None:
    name, other = await _upload(acme), await _upload(acme, an_adapter(seed=9))
    replica = await start("adapters")

    answers = [await acme.http.post(_CHAT, json=_body(one)) for one in (name, other, name)]
    foreign = await globex.http.post(_CHAT, json=_body(name))
    unknown = await globex.http.post(_CHAT, json=_body("tiny:file-none"))

    assert [answer.status_code for answer in answers] == [200] * 3
    assert [body["model"] for body in replica.app.bodies] == [name, other, name]
    assert foreign.status_code == unknown.status_code == 404
    assert foreign.text.replace(name, "tiny:file-none") == unknown.text
    await acme.openai.files.delete(name.partition(":")[2])
    assert (await acme.http.post(_CHAT, json=_body(name))).status_code == 404


async def test_an_adapter_that_cannot_be_loaded_fails_its_own_calls(
    acme: Caller, start: Start
) -> None:
    name = await _upload(acme, an_adapter(lora_alpha=MISFIT))
    await start("misfit")

    answer = await acme.http.post(_CHAT, json=_body(name))

    assert answer.status_code == 400
    assert "it does not fit" in answer.json()["error"]["message"]
    assert (await acme.http.post(_CHAT, json=_body("tiny"))).status_code == 200


async def test_a_dry_run_knows_the_tenants_adapters_alone(acme: Caller, globex: Caller) -> None:
    name = await _upload(acme)
    request = {"custom_id": "r", "method": "POST", "url": _CHAT, "body": _body(name)}

    for caller, codes in ((acme, []), (globex, ["model_not_found"])):
        file = await caller.openai.files.create(
            file=("in.jsonl", json.dumps(request).encode()), purpose="batch"
        )
        body = {"input_file_id": file.id, "endpoint": _CHAT, "completion_window": "24h"}
        answer = await caller.http.post("/v1/batches", json={**body, "dry_run": True})
        found = answer.json()["errors"]
        assert [one["code"] for one in (found or {"data": []})["data"]] == codes
