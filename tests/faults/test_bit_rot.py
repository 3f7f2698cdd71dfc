"""One object of each kind rots under real processes: they work on, and others notice nothing."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.__main__ import app
from cli.client.exit_codes import ExitCode
from shared.ledger.kinds import Kind, kind_of
from shared.state import State
from shared.storage import Storage
from tests.contract.engine import WAIT, ScriptedEngine
from tests.eventually import eventually
from tests.faults.conftest import CHAT, BrokerYard
from tests.servers import storage_of

_ROWS = 300


@pytest.fixture
async def storage(yard: BrokerYard) -> AsyncIterator[Storage]:
    """The bucket of the processes."""
    storage = storage_of(yard.environment)
    yield storage
    storage.close()


@pytest.fixture
async def engine(yard: BrokerYard) -> AsyncIterator[ScriptedEngine]:
    url = yard.environment["BATCHYARD_REDIS_URL"]
    engine = ScriptedEngine(lambda: State(url), lambda: storage_of(yard.environment))
    engine.start()
    yield engine
    await asyncio.to_thread(engine.stop)


async def _submit(yard: BrokerYard, key: str, *, waits_from: int = _ROWS) -> str:
    """A batch over HTTP; rows from a number on stay in the engine until they are released."""
    rows = [
        {
            "custom_id": f"row-{row}",
            "method": "POST",
            "url": CHAT,
            "body": {
                "model": "tiny",
                "messages": [{"role": "user", "content": WAIT if row >= waits_from else f"{row}"}],
            },
        }
        for row in range(_ROWS)
    ]
    body = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    upload = await yard.http.post(
        "/v1/files", files={"file": (f"{key}.jsonl", body)}, data={"purpose": "batch"}
    )
    return await _create(yard, key, upload.json()["id"])


async def _create(yard: BrokerYard, key: str, file_id: str) -> str:
    params = {"input_file_id": file_id, "endpoint": CHAT, "completion_window": "24h"}
    answer = await yard.http.post("/v1/batches", json=params, headers={"idempotency-key": key})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


async def _batch(yard: BrokerYard, batch_id: str) -> dict[str, Any]:
    answer = await yard.http.get(f"/v1/batches/{batch_id}")
    assert answer.status_code == 200, answer.text
    shape: dict[str, Any] = answer.json()
    return shape


async def _until(yard: BrokerYard, batch_id: str, *statuses: str) -> dict[str, Any]:
    async def has_come() -> bool:
        return (await _batch(yard, batch_id))["status"] in statuses

    await eventually(has_come, 120)
    return await _batch(yard, batch_id)


async def _rot_one_of_each(storage: Storage, spared: set[str]) -> dict[Kind, str]:
    """Flip a bit of the first object of each kind that has any bytes and no spared id."""
    rotten: dict[Kind, str] = {}
    async with aclosing(storage.pages("")) as pages:
        async for page in pages:
            for one in page:
                kind = kind_of(one.key)
                is_spared = any(id_ in one.key for id_ in spared)
                if kind is None or kind in rotten or is_spared or not one.size:
                    continue
                body, label = await storage.get(one.key), await storage.label(one.key)
                middle = len(body) // 2
                await storage.remove([one.key])
                flipped = body[:middle] + bytes([body[middle] ^ 1]) + body[middle + 1 :]
                await storage.put_once(one.key, flipped, label=label)
                rotten[kind] = one.key
    return rotten


async def _command(yard: BrokerYard, *arguments: str) -> tuple[int, dict[str, Any]]:
    names = ("REDIS_URL", "S3_ENDPOINT", "S3_ACCESS_KEY", "S3_SECRET_KEY", "S3_BUCKET")
    environment = {f"BATCHYARD_{name}": yard.environment[f"BATCHYARD_{name}"] for name in names}
    invoke = CliRunner(env=environment).invoke
    result = await asyncio.to_thread(invoke, app, [*arguments, "--json"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, json.loads(result.stdout.splitlines()[-1])


@pytest.mark.timeout(600)
async def test_one_rotten_object_of_each_kind_costs_no_other_batch_and_no_process(
    yard: BrokerYard, storage: Storage, engine: ScriptedEngine
) -> None:
    ended = [await _submit(yard, f"rot-ended-{n}") for n in range(3)]
    running = [await _submit(yard, f"rot-running-{n}", waits_from=200) for n in range(3)]
    for batch_id in ended:
        assert (await _until(yard, batch_id, "completed"))["request_counts"]["completed"] == _ROWS

    async def have_parts() -> bool:
        return all([await storage.keys(f"batches/{one}/parts/") for one in running])

    await eventually(have_parts, 60)
    await storage.put("tenants/nobody.json", b'{"event_streams":3}')
    batches = (ended[-1], running[-1])
    # Slices of the one that runs may not have been read from its file yet.
    spared = {*batches, *[(await _batch(yard, one))["input_file_id"] for one in batches]}

    rotten = await _rot_one_of_each(storage, spared)

    assert {Kind.MANIFEST, Kind.PLAN, Kind.PART, Kind.RESULT, Kind.COMMIT, Kind.FILE} <= set(rotten)
    # Senders repeat their calls and change things; new work comes.
    for n, batch_id in enumerate(running):
        file_id = (await _batch(yard, batch_id))["input_file_id"]
        assert await _create(yard, f"rot-running-{n}", file_id) == batch_id
        changed = await yard.http.post(f"/v1/batches/{batch_id}", json={"metadata": {"a": "b"}})
        assert changed.status_code in (200, 404, 405)
        engine.release(batch_id)
    new = await _submit(yard, "rot-new")
    for batch_id in (running[-1], new):
        assert (await _until(yard, batch_id, "completed"))["request_counts"]["failed"] == 0
    for batch_id in running[:-1]:
        shape = await _until(yard, batch_id, "completed", "failed")
        if shape["status"] == "completed":
            assert shape["request_counts"]["completed"] == _ROWS
    # Downloads are right, or say that they are not.
    for batch_id in (*ended, new):
        file_id = (await _batch(yard, batch_id))["output_file_id"]
        answer = await yard.http.get(f"/v1/files/{file_id}/content")
        if batch_id in rotten[Kind.RESULT]:
            assert (answer.status_code, answer.json()["error"]["code"]) == (500, "object_damaged")
        else:
            assert len(answer.content.splitlines()) == _ROWS
    assert (yard.gateway.child.poll(), yard.dispatcher.child.poll()) == (None, None)
    # An operator looks, repairs, and rebuilds; then the result is made again from its parts.
    code, told = await _command(yard, "fsck", "--repair")
    assert rotten[Kind.COMMIT] in {one["key"] for one in told["findings"]}
    damaged = rotten[Kind.RESULT].split("/")[1]
    remade, _ = await _command(yard, "remake", damaged)
    assert remade == ExitCode.DONE
    file_id = (await _batch(yard, damaged))["output_file_id"]
    whole = await yard.http.get(f"/v1/files/{file_id}/content")
    assert len(whole.content.splitlines()) == _ROWS
    code, told = await _command(yard, "rebuild")
    assert code in (ExitCode.DONE, ExitCode.DAMAGED)
    last = await _submit(yard, "rot-last")
    assert (await _until(yard, last, "completed"))["request_counts"]["completed"] == _ROWS
