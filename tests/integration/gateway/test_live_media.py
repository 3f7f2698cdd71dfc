"""Media that live calls name by URLs: what the engine gets of them, and what is never fetched."""

import base64
from collections.abc import Iterator
from typing import Any

import pytest

from gateway.settings import GatewaySettings
from shared.state import State
from shared.storage import Storage
from tests.integration.gateway.conftest import Caller, Start, calling, running
from tests.live_replica import HELLO
from tests.media_host import FILE, MediaHost, media_host

CHAT = "/v1/chat/completions"
_DATA = "data:application/octet-stream;base64," + base64.b64encode(FILE).decode()


@pytest.fixture
def host() -> Iterator[MediaHost]:
    with media_host() as host:
        yield host


def _body(*urls: str) -> dict[str, Any]:
    pictures = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    content = [{"type": "text", "text": HELLO}, *pictures]
    return {"model": "tiny", "messages": [{"role": "user", "content": content}]}


def _at(host: MediaHost, path: str) -> str:
    return f"http://127.0.0.1:{host.server_port}{path}"


async def test_the_engine_gets_the_bytes_of_what_a_live_call_names(
    acme: Caller, start: Start, bucket: Storage, host: MediaHost
) -> None:
    replica = await start("sees")
    await bucket.put(f"inbox/{acme.tenant}/a b.png", FILE)
    urls = [f"s3://{bucket.bucket}/inbox/{acme.tenant}/a b.png", _at(host, "/a"), _DATA]

    answer = await acme.http.post(CHAT, json=_body(*urls))

    assert answer.status_code == 200
    assert replica.app.bodies == [_body(_DATA, _DATA, _DATA)]


@pytest.mark.parametrize(
    ("path", "why"),
    [("/redirect", "302"), ("/broken", "503"), ("/endless", "1000 bytes")],
)
async def test_what_cannot_be_had_is_a_refusal_with_its_place(
    acme: Caller,
    start: Start,
    host: MediaHost,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    why: str,
) -> None:
    monkeypatch.setattr("shared.media_fetcher._PAUSES", (0.0, 0.0))
    replica = await start("sees-nothing")

    answer = await acme.http.post(CHAT, json=_body(_DATA, _at(host, path)))

    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "invalid_value")
    assert error["param"] == "messages.0.content.2.image_url"
    assert why in error["message"]
    assert replica.app.bodies == []


async def test_nothing_is_fetched_for_a_tenant_that_may_not_name_it(
    acme: Caller, globex: Caller, bucket: Storage, host: MediaHost
) -> None:
    await bucket.put(f"inbox/{globex.tenant}/a.png", FILE)
    others = f"s3://{bucket.bucket}/inbox/{globex.tenant}/a.png"
    elsewhere = f"http://localhost:{host.server_port}/a"

    for url in (others, elsewhere):
        answer = await acme.http.post(CHAT, json=_body(url))

        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "messages.0.content.1.image_url")
        assert f"inbox/{acme.tenant}/" in error["message"]
    assert host.paths == []


async def test_a_gateway_calls_no_private_address_that_the_operator_has_not_named(
    settings: GatewaySettings, gateway_state: State, host: MediaHost
) -> None:
    closed = GatewaySettings.model_validate({**settings.model_dump(), "media_networks": ()})
    with running(closed) as gateway:
        async with calling(gateway, gateway_state) as caller:
            answer = await caller.http.post(CHAT, json=_body(_at(host, "/a")))

    assert answer.status_code == 400
    assert "public address" in answer.json()["error"]["message"]
    assert host.paths == []
