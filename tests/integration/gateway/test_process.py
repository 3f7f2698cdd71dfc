"""The real process: its settings, its log, and its death at the worst moments."""

import asyncio
import contextlib
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from redis.asyncio import Redis

from cli.servers import free_port
from cli.servers.http import is_well
from gateway.settings import GatewaySettings
from shared.ledger.packs import PACKS, pack_of, read_manifest, read_pack
from shared.state import State
from shared.state.state import NAMESPACE
from tests.chaos.points import TOGETHER_POINTS
from tests.eventually import eventually
from tests.integration.gateway.conftest import Caller
from tests.servers import storage_of

LINE = b'{"custom_id":"a","method":"POST","url":"/v1/embeddings","body":{"model":"tiny"}}\n'
SECRET = "the prompt that nobody may see"  # a prompt


@pytest.fixture
def environment(settings: GatewaySettings, redis_url: str) -> dict[str, str]:
    """Of a process with a Redis database of its own: no other relay empties its outbox."""
    return {
        **{name: value for name, value in os.environ.items() if "BATCHYARD" not in name},
        "BATCHYARD_AMQP_URL": settings.amqp_url.get_secret_value(),
        "BATCHYARD_REDIS_URL": f"{redis_url.rpartition('/')[0]}/8",
        "BATCHYARD_S3_ENDPOINT": settings.s3_endpoint,
        "BATCHYARD_S3_ACCESS_KEY": settings.s3_access_key,
        "BATCHYARD_S3_SECRET_KEY": settings.s3_secret_key.get_secret_value(),
        "BATCHYARD_S3_BUCKET": settings.s3_bucket,
        "BATCHYARD_SERVICE_USER": settings.service_user,
        "BATCHYARD_CATALOG": str(settings.catalog),
        "BATCHYARD_PORT": str(free_port()),
    }


@pytest.fixture
async def state(environment: dict[str, str]) -> AsyncIterator[State]:
    state = State(environment["BATCHYARD_REDIS_URL"])
    yield state
    await state.close()


@pytest.fixture
async def key(state: State) -> str:
    return await state.keys.create("acme")


@contextlib.contextmanager
def process(environment: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`python -m gateway`, serving; ended for certain afterwards."""
    with log.open("ab") as output:
        child = subprocess.Popen([sys.executable, "-m", "gateway"], env=environment, stderr=output)
    try:
        deadline = time.monotonic() + 60
        while not is_well(f"http://127.0.0.1:{environment['BATCHYARD_PORT']}/healthz"):
            assert child.poll() is None, log.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield child
    finally:
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
        child.wait(30)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"BATCHYARD_AMQP_URL": None}, "BATCHYARD_AMQP_URL: Field required"),
        ({"BATCHYARD_PORT": "many"}, "BATCHYARD_PORT: Input should be a valid integer"),
        ({"BATCHYARD_COMPLETION_WINDOWS": "24h"}, "completion_windows"),
        ({"BATCHYARD_CATALOG": "/nowhere.yaml"}, "/nowhere.yaml: cannot be read"),
    ],
)
def test_settings_that_cannot_be_used_are_named_in_one_line(
    change: dict[str, str | None], said: str, environment: dict[str, str]
) -> None:
    changed = {name: value for name, value in {**environment, **change}.items() if value}

    ended = subprocess.run(
        [sys.executable, "-m", "gateway"], env=changed, capture_output=True, text=True, check=False
    )

    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    assert ended.stderr.startswith("gateway: cannot start: ")
    assert said in ended.stderr


async def test_each_call_is_one_line_without_prompts_or_keys(
    environment: dict[str, str], key: str, tmp_path: Path
) -> None:
    with process({**environment, "BATCHYARD_LOG_LEVEL": "DEBUG"}, tmp_path / "log"):
        async with _client(environment, key) as client:
            uploaded = await _upload(client, f'{{"prompt":"{SECRET}"}}\n'.encode())
            answer = await client.get(
                f"/v1/files/{uploaded}", headers={"x-client-request-id": "mine-1"}
            )
            await client.post("/v1/batches", json={"metadata": {"k": [SECRET]}})

    log = (tmp_path / "log").read_text()
    assert SECRET not in log
    assert key not in log
    lines = [json.loads(line) for line in log.splitlines()]
    found = [line for line in lines if line.get("client_request_id") == "mine-1"]
    assert [(line["method"], line["route"], line["status"], line["tenant"]) for line in found] == [
        ("GET", "/v1/files/{file_id}", 200, "acme")
    ]
    assert found[0]["request_id"] == answer.headers["x-request-id"]
    assert found[0]["ms"] >= 0
    assert found[0]["process"] == "gateway"


async def test_gateways_that_share_a_port_both_serve_and_double_nothing(
    environment: dict[str, str], state: State, key: str, tmp_path: Path
) -> None:
    shared = {**environment, "BATCHYARD_SHARE_PORT": "true", "BATCHYARD_LOG_LEVEL": "DEBUG"}
    logs = [tmp_path / "one", tmp_path / "other"]

    async def create(file_id: str) -> str:
        # Each call has a connection of its own, which the kernel gives to one of the two.
        async with _client(shared, key) as client:
            created = await client.post(
                "/v1/batches", json=_params(file_id), headers={"idempotency-key": "mine"}
            )
            return str(created.raise_for_status().json()["id"])

    async def list_() -> list[dict[str, Any]]:
        async with _client(shared, key) as client:
            found: list[dict[str, Any]] = (await client.get("/v1/batches")).json()["data"]
            return found

    async def both_have_served() -> bool:
        await list_()
        return all("/v1/batches" in log.read_text() for log in logs)

    with process(shared, logs[0]) as one, process(shared, logs[1]):
        await eventually(both_have_served, timeout=60)
        async with _client(shared, key) as client:
            file_id = await _upload(client, LINE)
        created = await asyncio.gather(*(create(file_id) for _ in range(24)))

        async def is_relayed() -> bool:
            return await state.outbox.length("submissions") == 0

        await eventually(is_relayed)
        one.send_signal(signal.SIGTERM)
        one.wait(60)
        listed = await list_()

    assert len(set(created)) == 1
    assert [batch["id"] for batch in listed] == created[:1]


@contextlib.contextmanager
def _starting(environment: dict[str, str]) -> Iterator[psutil.Process]:
    """A gateway that has no broker, and waits for it while it starts."""
    nobody = f"amqp://nobody:nothing@127.0.0.1:{free_port()}/"
    with subprocess.Popen(
        [sys.executable, "-m", "gateway"],
        env={**environment, "BATCHYARD_AMQP_URL": nobody},
        stderr=subprocess.DEVNULL,
    ) as child:
        yield psutil.Process(child.pid)
        child.kill()


async def test_a_gateway_that_is_still_starting_gets_no_connections(
    environment: dict[str, str], key: str, tmp_path: Path
) -> None:
    shared = {**environment, "BATCHYARD_SHARE_PORT": "true"}
    with process(shared, tmp_path / "log"), _starting(shared) as starting:
        # It has its port before it connects to anything.
        await eventually(lambda: bool(starting.net_connections("tcp")), timeout=60)
        for _ in range(20):
            async with _client(shared, key) as client:
                answer = await client.get("/v1/batches", timeout=10)
                assert answer.status_code == 200
        assert starting.is_running()


def test_a_port_of_another_program_is_not_shared(environment: dict[str, str]) -> None:
    shared = {**environment, "BATCHYARD_SHARE_PORT": "true"}
    with socket.create_server(("127.0.0.1", int(environment["BATCHYARD_PORT"]))):
        ended = subprocess.run(
            [sys.executable, "-m", "gateway"],
            env=shared,
            capture_output=True,
            text=True,
            check=False,
        )

    assert ended.returncode == 3
    assert f"127.0.0.1:{environment['BATCHYARD_PORT']}" in ended.stderr


async def test_a_death_between_writing_and_publishing_loses_nothing(
    environment: dict[str, str], state: State, key: str, tmp_path: Path
) -> None:
    doomed = {
        **environment,
        "BATCHYARD_CRASH_AT": "relay.read",
        "BATCHYARD_CRASH_LOG": str(tmp_path / "crashed"),
    }
    with process(doomed, tmp_path / "log") as child:
        async with _client(doomed, key) as client:
            file_id = await _upload(client, LINE)
            with contextlib.suppress(httpx.TransportError):
                await client.post("/v1/batches", json=_params(file_id))
            await eventually(lambda: child.poll() == -signal.SIGKILL)
    assert (tmp_path / "crashed").read_text() == "relay.read\n"
    assert await state.outbox.length("submissions") == 1

    with process(environment, tmp_path / "log"):

        async def is_relayed() -> bool:
            return await state.outbox.length("submissions") == 0

        await eventually(is_relayed)


async def test_a_death_before_the_answer_is_met_by_the_same_key(
    environment: dict[str, str], key: str, tmp_path: Path
) -> None:
    doomed = {**environment, "BATCHYARD_CRASH_AT": "gateway.accepted"}
    headers = {"idempotency-key": f"k-{tmp_path}"}
    with process(doomed, tmp_path / "log") as child:
        async with _client(doomed, key) as client:
            file_id = await _upload(client, LINE)
            with pytest.raises(httpx.TransportError):
                await client.post("/v1/batches", json=_params(file_id), headers=headers)
            await eventually(lambda: child.poll() == -signal.SIGKILL)

    with process(environment, tmp_path / "log"):
        async with _client(environment, key) as client:
            before = (await client.get("/v1/batches")).json()["data"]
            again = await client.post("/v1/batches", json=_params(file_id), headers=headers)
            after = (await client.get("/v1/batches")).json()["data"]

    assert again.status_code == 200
    assert [batch["id"] for batch in after] == [batch["id"] for batch in before]
    assert again.json() == before[0]


@pytest.mark.parametrize("point", TOGETHER_POINTS)
async def test_a_death_leaves_no_half_of_batches_that_share_a_write(
    point: str, environment: dict[str, str], state: State, tmp_path: Path
) -> None:
    tenant = f"t{secrets.token_hex(4)}"
    key = await state.keys.create(tenant)
    doomed = {**environment, "BATCHYARD_CRASH_AT": point}
    with process(doomed, tmp_path / "log") as child:
        async with _client(doomed, key) as client:
            file_id = await _upload(client, LINE)
            answers = await asyncio.gather(
                *(client.post("/v1/batches", json=_params(file_id)) for _ in range(24)),
                return_exceptions=True,
            )
            await eventually(lambda: child.poll() == -signal.SIGKILL)
    answered = {one.json()["id"] for one in answers if isinstance(one, httpx.Response)}

    with process(environment, tmp_path / "log"):
        async with _client(environment, key) as client:
            listed = (await client.get("/v1/batches?limit=100")).json()["data"]

        async def is_relayed() -> bool:
            return await state.outbox.length("submissions") == 0

        await eventually(is_relayed)

    ids = {batch["id"] for batch in listed}
    assert answered <= ids
    assert {batch["status"] for batch in listed} <= {"validating"}
    storage = storage_of(environment)
    found = {key: await read_pack(storage, key) for key in await storage.keys(PACKS)}
    packs = {
        key: {line.manifest.id for line in lines}
        for key, lines in found.items()
        if lines[0].manifest.tenant == tenant
    }
    # All batches of a pack are there, or none; and a sweeper knows of the pack in that case.
    kept = {key for key, shared in packs.items() if shared & ids}
    assert all(packs[key] <= ids for key in kept)
    # Two writes are on their way at once: Redis may have taken the other one, too.
    assert kept if point == "together.accepted" else packs
    for key in packs:
        await _assert_swept_in_a_day(environment, key, is_garbage=key not in kept)
    for batch in listed:
        record = await state.batches.get(batch["id"])
        pack = pack_of(record.fields)
        assert {one for one in packs if record.id in packs[one]} == {pack} - {""}
        manifest = await read_manifest(storage, record.id, pack=pack)
        assert manifest.message_id == record.fields["message_id"]
    storage.close()


async def _assert_swept_in_a_day(
    environment: dict[str, str], pack: str, *, is_garbage: bool
) -> None:
    redis: Redis[str] = Redis.from_url(environment["BATCHYARD_REDIS_URL"], decode_responses=True)
    at = await redis.zscore(f"{NAMESPACE}garbage", pack.removesuffix("0.jsonl"))
    await redis.aclose()
    assert (at is not None) == is_garbage
    assert at is None or time.time() < at < time.time() + 86_500


async def test_an_upload_outlives_a_death_at_every_point(
    environment: dict[str, str],
    settings: GatewaySettings,
    acme: Caller,
    gateway_state: State,
    tmp_path: Path,
) -> None:
    # On the state of the session's gateway, which lives on beside those that die.
    shared = {**environment, "BATCHYARD_REDIS_URL": settings.redis_url.get_secret_value()}
    uploads = acme.openai.uploads
    upload = await uploads.create(bytes=4, filename="a", mime_type="x", purpose="user_data")
    path = f"/v1/uploads/{upload.id}"
    parts = [await uploads.parts.create(upload.id, data=data) for data in (b"ro", b"ws")]
    part_ids = [part.id for part in parts]

    async def dies_at(point: str, verb: str, **body: Any) -> None:
        doomed = {**shared, "BATCHYARD_CRASH_AT": point}
        with process(doomed, tmp_path / "log") as child:
            async with _client(doomed, acme.key) as client:
                with pytest.raises(httpx.TransportError):
                    await client.post(f"{path}/{verb}", **body)
            await eventually(lambda: child.poll() == -signal.SIGKILL)

    await dies_at("uploads.part_stored", "parts", files={"data": b"lost"})
    await dies_at("files.recorded", "complete", json={"part_ids": part_ids})
    assert (await acme.openai.files.list()).data == []
    await dies_at("uploads.completed", "complete", json={"part_ids": part_ids})
    [file] = (await acme.openai.files.list()).data

    again = await uploads.complete(upload.id, part_ids=part_ids)

    assert again.file == file
    assert (await acme.openai.files.content(file.id)).content == b"rows"
    await _assert_the_rest_is_swept(shared, gateway_state, acme.tenant, file.id, upload.id)


async def _assert_the_rest_is_swept(
    environment: dict[str, str], state: State, tenant: str, file_id: str, upload_id: str
) -> None:
    storage = storage_of(environment)
    redis: Redis[str] = Redis.from_url(environment["BATCHYARD_REDIS_URL"], decode_responses=True)
    key = f"files/{tenant}/{file_id}"
    left = set(await storage.keys(f"files/{tenant}/")) - {key, f"{key}.json"}
    parts = await storage.keys(f"uploads/{upload_id}/")
    waiting = dict(await redis.zrange(f"{NAMESPACE}garbage", 0, -1, withscores=True))
    await redis.aclose()
    storage.close()

    assert (len(left), len(parts)) == (2, 3)
    assert left <= waiting.keys()
    assert not {key, f"{key}.json"} & waiting.keys()
    assert all(time.time() < waiting[name] < time.time() + 86_500 for name in left)
    assert f"uploads/{upload_id}/" in await state.files.garbage(limit=100_000)


async def test_memory_does_not_grow_with_a_part(
    environment: dict[str, str], key: str, tmp_path: Path
) -> None:
    params = {"bytes": 80_000_000, "filename": "a", "mime_type": "x", "purpose": "user_data"}
    with process(environment, tmp_path / "log") as child:
        async with _client(environment, key) as client:
            upload = (await client.post("/v1/uploads", json=params)).json()["id"]
            part_ids, peaks = [], []
            for size in (20_000_000, 60_000_000):
                data = secrets.token_bytes(size)
                part = await client.post(f"/v1/uploads/{upload}/parts", files={"data": data})
                part_ids.append(part.json()["id"])
                peaks.append(_peak_bytes(child.pid))
            completed = await client.post(
                f"/v1/uploads/{upload}/complete", json={"part_ids": part_ids}
            )
            peaks.append(_peak_bytes(child.pid))

    assert completed.json()["status"] == "completed"
    assert peaks[2] - peaks[0] < 24_000_000


def _peak_bytes(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


async def test_it_is_the_client_who_ends_a_connection_that_is_idle(
    environment: dict[str, str], key: str, tmp_path: Path
) -> None:
    with process(environment, tmp_path / "log"):
        limits = httpx.Limits(keepalive_expiry=60)
        async with httpx.AsyncClient(timeout=30, limits=limits) as client:
            address = f"http://127.0.0.1:{environment['BATCHYARD_PORT']}/v1/models"
            ports = []
            for pause in (5.5, 0):
                answer = await client.get(address, headers={"authorization": f"Bearer {key}"})
                stream = answer.extensions["network_stream"]
                ports.append(stream.get_extra_info("client_addr")[1])
                # OpenAI's clients end it after five.
                await asyncio.sleep(pause)

    assert ports[0] == ports[1]


async def test_a_stream_of_events_does_not_hold_up_the_end(
    environment: dict[str, str], key: str, tmp_path: Path
) -> None:
    with process(environment, tmp_path / "log") as child:
        async with _client(environment, key) as client:
            batch = (
                await client.post("/v1/batches", json=_params(await _upload(client, LINE)))
            ).json()
            async with client.stream("GET", f"/v1/batches/{batch['id']}/events") as answer:
                body = answer.aiter_bytes()
                first = await anext(body)
                began = time.monotonic()
                child.send_signal(signal.SIGTERM)
                # It ends like a complete answer, not like one that was cut off.
                rest = [chunk async for chunk in body]
        code = child.wait(10)

    assert b"event: batch.accepted" in first
    assert rest == []
    assert time.monotonic() - began < 10
    assert code == -signal.SIGTERM


def _client(environment: dict[str, str], key: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{environment['BATCHYARD_PORT']}",
        headers={"authorization": f"Bearer {key}"},
        timeout=30,
    )


async def _upload(client: httpx.AsyncClient, body: bytes) -> str:
    answer = await client.post(
        "/v1/files", files={"file": ("in.jsonl", body)}, data={"purpose": "batch"}
    )
    file_id: str = answer.json()["id"]
    return file_id


def _params(file_id: str) -> dict[str, str]:
    return {
        "input_file_id": file_id,
        "endpoint": "/v1/embeddings",
        "completion_window": "24h",
    }
