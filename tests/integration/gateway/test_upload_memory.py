"""A gateway limits concurrent uploads by their memory."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from redis.asyncio import Redis

from gateway.settings import GatewaySettings
from shared.state import State
from shared.state.state import NAMESPACE
from shared.storage import UPLOAD_BYTES
from shared.tasks import end
from tests.eventually import eventually
from tests.integration.gateway.conftest import Caller, Gateway, calling, running

_BOUNDARY = "b0undary"
_HEAD = (
    f"--{_BOUNDARY}\r\n"
    'Content-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    f"--{_BOUNDARY}\r\n"
    'Content-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
).encode()
_TAIL = f"\r\n--{_BOUNDARY}--\r\n".encode()
_TYPE = {"content-type": f"multipart/form-data; boundary={_BOUNDARY}"}


@pytest.fixture(scope="module")
def gateway(settings: GatewaySettings) -> Iterator[Gateway]:
    """With room for two uploads of unknown size, one for each tenant, and a few small ones."""
    changes = {"upload_memory_bytes": 2 * UPLOAD_BYTES + 1_000_000}
    with running(GatewaySettings.model_validate({**settings.model_dump(), **changes})) as gateway:
        yield gateway


async def test_uploads_that_a_tenant_has_no_memory_for_are_asked_to_come_again(
    gateway: Gateway, acme: Caller, gateway_state: State
) -> None:
    go_on = asyncio.Event()
    slow = asyncio.create_task(_upload(acme.http, _slow_body(go_on)))
    await eventually(lambda: _has_begun(gateway, acme), 60)

    refused = await _upload(acme.http, _body())
    small = await acme.http.post(
        "/v1/files", files={"file": ("in.jsonl", b"{}\n")}, data={"purpose": "batch"}
    )
    part = await _part(acme)
    async with calling(gateway, gateway_state) as other:
        of_other = await _upload(other.http, _body())

    assert of_other.status_code == 200
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "5"
    assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    assert part.status_code == 429
    assert small.status_code == 200
    go_on.set()
    assert (await slow).status_code == 200
    assert (await _upload(acme.http, _body())).status_code == 200


async def test_an_upload_that_breaks_off_gives_its_room_back(
    gateway: Gateway, acme: Caller
) -> None:
    slow = asyncio.create_task(_upload(acme.http, _slow_body(asyncio.Event())))
    await eventually(lambda: _has_begun(gateway, acme), 60)
    assert (await _upload(acme.http, _body())).status_code == 429

    await end(slow)

    async def is_taken() -> bool:
        return (await _upload(acme.http, _body())).status_code == 200

    await eventually(is_taken, 60)


async def _has_begun(gateway: Gateway, caller: Caller) -> bool:
    """Whether a file of the caller's is reserved, as all are while they are uploaded."""
    url = gateway.settings.redis_url.get_secret_value()
    async with Redis.from_url(url, decode_responses=True) as redis:
        reserved = await redis.zrange(f"{NAMESPACE}garbage", 0, -1)
    return any(key.startswith(f"files/{caller.tenant}/") for key in reserved)


async def _upload(http: httpx.AsyncClient, body: AsyncIterator[bytes]) -> httpx.Response:
    """In pieces, which do not say how large they are together."""
    return await http.post("/v1/files", content=body, headers=_TYPE)


async def _part(caller: Caller) -> httpx.Response:
    params = {"bytes": 2, "filename": "a.jsonl", "purpose": "batch", "mime_type": "text/jsonl"}
    upload = (await caller.http.post("/v1/uploads", json=params)).json()["id"]
    head = _HEAD.partition(b"batch\r\n")[2].replace(b'name="file"', b'name="data"')

    async def body() -> AsyncIterator[bytes]:
        yield head + b"{}" + _TAIL

    path = f"/v1/uploads/{upload}/parts"
    return await caller.http.post(path, content=body(), headers=_TYPE)


async def _body() -> AsyncIterator[bytes]:
    yield _HEAD + b"{}\n" + _TAIL


async def _slow_body(go_on: asyncio.Event) -> AsyncIterator[bytes]:
    yield _HEAD + b"{}\n"
    await go_on.wait()
    yield _TAIL
