"""The trail and the access log of a running gateway."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.settings import GatewaySettings
from shared.scopes import Scope
from shared.state import State
from shared.storage import Storage
from tests.integration.gateway.conftest import Caller, Gateway, calling, running

_SECRET = "the-treasure-lies-under-the-old-oak"
LINE = (
    b'{"custom_id":"%s","method":"POST","url":"/v1/completions",' % _SECRET.encode()
    + b'"body":{"model":"tiny","prompt":"%s"}}\n' % _SECRET.encode()
)


@pytest.fixture(scope="module")
def trail(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trail") / "trail.jsonl"


@pytest.fixture(scope="module")
def gateway(settings: GatewaySettings, trail: Path) -> Iterator[Gateway]:
    told = GatewaySettings.model_validate({**settings.model_dump(), "trail_file": trail})
    with running(told) as gateway:
        yield gateway


@pytest.fixture
async def acme(gateway: Gateway, gateway_state: State, trail: Path) -> AsyncIterator[Caller]:
    _forget(trail)
    async with calling(gateway, gateway_state) as caller:
        yield caller


async def test_each_act_of_a_tenant_is_a_line_without_contents(
    acme: Caller, gateway_state: State, trail: Path
) -> None:
    http, key_id = acme.http, (await gateway_state.keys.get(acme.key)).id
    hook = {"name": _SECRET, "url": "https://example.com/a", "event_types": ["batch.completed"]}

    file_id = (await acme.openai.files.create(file=LINE, purpose="batch")).id
    batch = await http.post("/v1/batches", json={**_params(file_id), "metadata": {"a": _SECRET}})
    batch_id = batch.json()["id"]
    for verb in ("pause", "resume"):
        await http.post(f"/v1/batches/{batch_id}/{verb}")
    await http.post(f"/v1/batches/{batch_id}", json={"metadata": {"b": _SECRET}})
    await http.get(f"/v1/files/{file_id}/content")
    await http.post(f"/v1/batches/{batch_id}/cancel")
    endpoint_id = (await http.post("/v1/webhook_endpoints", json=hook)).json()["id"]
    await http.delete(f"/v1/webhook_endpoints/{endpoint_id}")
    await http.delete(f"/v1/files/{file_id}")
    await http.delete(f"/v1/files/{file_id}")

    lines = _lines(trail)
    assert [(line["act"], line.get("object")) for line in lines] == [
        ("file.uploaded", file_id),
        ("batch.created", batch_id),
        ("batch.paused", batch_id),
        ("batch.resumed", batch_id),
        ("batch.changed", batch_id),
        ("file.read", file_id),
        ("batch.cancelled", batch_id),
        ("webhook.created", endpoint_id),
        ("webhook.deleted", endpoint_id),
        ("file.deleted", file_id),
        ("file.deleted", file_id),
    ]
    assert [(line["result"], line.get("why")) for line in lines] == [
        *[("done", None)] * 10,
        ("refused", "404"),
    ]
    assert {(line["tenant"], line["key_id"], line["door"]) for line in lines} == {
        (acme.tenant, key_id, "http")
    }
    assert all(line["request_id"].startswith("req_") for line in lines)
    assert _SECRET not in json.dumps(lines)
    assert acme.key not in json.dumps(lines)


async def test_what_changes_nothing_and_what_is_not_let_in_is_no_act(
    acme: Caller, trail: Path
) -> None:
    file_id = (await acme.openai.files.create(file=LINE, purpose="batch")).id
    _forget(trail)

    await acme.http.get("/v1/batches")
    await acme.http.get("/v1/limits")
    await acme.http.get(f"/v1/files/{file_id}")
    await acme.http.post("/v1/batches", json={**_params(file_id), "dry_run": True})
    stranger = {"authorization": "Bearer sk-nobody"}
    await acme.http.delete(f"/v1/files/{file_id}", headers=stranger)

    assert _lines(trail) == []


async def test_what_a_client_writes_in_a_path_is_not_told(acme: Caller, trail: Path) -> None:
    await acme.http.post(f"/v1/batches/{_SECRET}/cancel")

    [line] = _lines(trail)
    assert (line["act"], line["result"], "object" in line) == ("batch.cancelled", "refused", False)
    assert _SECRET not in json.dumps(line)


async def test_a_call_without_the_scope_is_told_as_refused(
    acme: Caller, gateway_state: State, trail: Path
) -> None:
    key_id = await gateway_state.keys.add(acme.tenant, f"sk-{acme.tenant}", scopes=(Scope.READ,))

    await acme.http.delete(
        "/v1/files/file-0123456789abcdefghijkl",
        headers={"authorization": f"Bearer sk-{acme.tenant}"},
    )

    [line] = _lines(trail)
    assert (line["result"], line["why"], line["key_id"]) == ("refused", "403", key_id)
    assert line["object"] == "file-0123456789abcdefghijkl"


async def test_the_access_log_names_the_key_and_the_object(
    acme: Caller, gateway_state: State, bucket: Storage
) -> None:
    key_id = (await gateway_state.keys.get(acme.key)).id

    with capture_logs() as logs:
        file_id = (await acme.openai.files.create(file=LINE, purpose="batch")).id
        await acme.http.get(f"/v1/files/{file_id}")
        await acme.http.get(f"/v1/files/{_SECRET}")

    answered = [entry for entry in logs if entry["event"] == "http.answered"]
    assert [(entry["key_id"], entry["object_id"]) for entry in answered] == [
        (key_id, file_id),
        (key_id, file_id),
        (key_id, None),
    ]
    assert _SECRET not in json.dumps(answered)


def _lines(trail: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in trail.read_text().splitlines()] if trail.exists() else []


def _forget(trail: Path) -> None:
    trail.unlink(missing_ok=True)


def _params(file_id: str) -> dict[str, Any]:
    return {
        "input_file_id": file_id,
        "endpoint": "/v1/completions",
        "completion_window": "24h",
    }
