"""Tenants' LoRA adapters on their way from S3 to an engine."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from shared.catalog import Lane
from shared.ledger.file_records import write_file
from shared.ordering.work import Work
from shared.state import FileRecord
from shared.storage import Storage
from tests.eventually import eventually
from tests.faults.s3_proxy import Refusal, s3_proxy
from tests.servers import S3
from worker import adapter_engine, adapter_keeper
from worker.adapter_engine import AdapterEngine
from worker.adapter_keeper import AdapterKeeper
from worker.engine_errors import EngineUnavailableError, Results

_FILE = b"an adapter"
_LANE = Lane("tiny", "cpu")


class _Engine:
    """Notes which file came with each line."""

    def __init__(self) -> None:
        self.adapters: list[Any] = []

    async def run_lines(
        self, lines: Sequence[bytes], order: Sequence[Work]
    ) -> AsyncGenerator[Results, None]:
        self.adapters += [work.adapter for work in order]
        yield [(number, (200, line)) for number, line in enumerate(lines)]

    async def withdraw(self, batch_id: str) -> None:
        raise NotImplementedError


async def _keep(storage: Storage, tenant: str, file_id: str, **fields: Any) -> FileRecord:
    stored = await storage.put(f"files/{tenant}/{file_id}", _FILE)
    file = FileRecord.stored(
        file_id,
        tenant,
        stored,
        bucket=storage.bucket,
        created_at=1_000,
        seconds=fields.pop("seconds", None),
        filename="a.tar",
        purpose=fields.pop("purpose", "adapter"),
    )
    await write_file(storage, file)
    return file


async def _run(storage: Storage, *models: str, tenant: str = "acme") -> tuple[list[Any], int]:
    """What the engine gets with rows of these models, and how many files were put for it."""
    put: list[bytes] = []

    async def store(archive: bytes) -> Any:
        put.append(archive)
        return ("reference", archive)

    behind = _Engine()
    engine = AdapterEngine(behind, lambda: storage, store)
    lines = [json.dumps({"custom_id": "r", "body": {"model": model}}).encode() for model in models]
    works = [Work("batch", at, tenant, 0, 0, 0, 1) for at in range(len(lines))]
    async with aclosing(engine.run_lines(lines, works)) as groups:
        async for _ in groups:
            pass
    return behind.adapters, len(put)


async def test_a_row_comes_with_its_tenants_adapter_which_is_fetched_once(storage: Storage) -> None:
    await _keep(storage, "acme", "file-a")

    found, times = await _run(storage, "tiny", "tiny:file-a", "tiny:file-a", "tiny:file-none")

    assert found == [None, ("reference", _FILE), ("reference", _FILE), None]
    assert times == 1


async def test_nobody_gets_another_tenants_adapter_or_what_is_none(storage: Storage) -> None:
    await _keep(storage, "umbrella", "file-theirs")
    await _keep(storage, "acme", "file-input", purpose="batch")
    await _keep(storage, "acme", "file-old", seconds=1)
    await storage.put("files/acme/file-damaged.json", b"{}")

    names = [f"tiny:file-{one}" for one in ("theirs", "input", "old", "damaged")]
    found, _ = await _run(storage, *names, "tiny:file-../umbrella/file-theirs")

    assert found == [None] * 5


async def test_a_deleted_adapter_is_noticed(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter_engine, "_FRESH_SECONDS", 0.0)
    file = await _keep(storage, "acme", "file-a")
    behind = _Engine()

    async def store(archive: bytes) -> Any:
        return archive

    engine = AdapterEngine(behind, lambda: storage, store)
    line = json.dumps({"body": {"model": "tiny:file-a"}}).encode()
    for _ in range(2):
        async for _ in engine.run_lines([line], [Work("batch", 0, "acme", 0, 0, 0, 1)]):
            pass
        await storage.remove([file.record_key])

    assert behind.adapters == [_FILE, None]


async def test_rows_go_back_while_s3_is_away(storage: Storage, s3: S3) -> None:
    await _keep(storage, "acme", "file-a")
    with s3_proxy(s3.endpoint) as proxy:
        keys = s3.access_key, s3.secret_key, storage.bucket
        away = Storage(proxy.endpoint, *keys, attempts=1)
        proxy.judge = lambda *_: Refusal(500, "UnknownError")
        with pytest.raises(EngineUnavailableError):
            await _run(away, "tiny:file-a")
        away.close()


async def test_engines_are_told_of_adapters_that_are_gone(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapter_keeper, "LOOK_SECONDS", 0.05)
    await _keep(storage, "acme", "file-a")
    told: list[str] = []

    class Engines:
        async def adapters(self, engine: Lane) -> set[tuple[str, str]]:
            assert engine == _LANE
            return {("acme", "tiny:file-a"), ("acme", "tiny:file-b"), ("other", "tiny:file-a")}

        async def forget_adapters(self, engine: Lane, names: Sequence[str]) -> None:
            assert engine == _LANE
            told.extend(sorted(names))

    keeper = AdapterKeeper(storage, Engines(), lanes=(_LANE,), is_busy=lambda: True)
    running = asyncio.create_task(keeper.run())
    await eventually(lambda: bool(told))
    running.cancel()

    assert told[:2] == ["tiny:file-a", "tiny:file-b"]
