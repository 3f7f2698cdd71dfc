import asyncio
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from shared.adapter_archive import CONFIG, WEIGHTS, AdapterLimits
from tests.adapters import an_adapter
from tests.eventually import eventually
from worker.adapter_shelf import AdapterShelf, LoadError, unknown
from worker.engine_errors import Answer, EngineGoneError


class _Loader:
    """In vLLM's place; what it has loaded, and the folders of it."""

    def __init__(self) -> None:
        self.folders: dict[str, Path] = {}
        self.times = 0
        self.error: Exception | None = None

    async def load(self, name: str, folder: Path) -> None:
        await asyncio.sleep(0)
        self.times += 1
        if self.error is not None:
            raise self.error
        assert {path.name for path in folder.iterdir()} == {CONFIG, WEIGHTS}  # noqa: ASYNC240  # a test
        self.folders[name] = folder

    async def unload(self, name: str) -> None:
        # vLLM may read it until now.
        assert self.folders.pop(name).is_dir()  # a test


@pytest.fixture
def loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Loader:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return _Loader()


def _shelf(loader: _Loader, *, kept: int = 2) -> AdapterShelf:
    return AdapterShelf(loader, AdapterLimits(bytes=1024 * 1024, rank=8), kept=kept)


async def _use(shelf: AdapterShelf, name: str, tenant: str = "acme") -> Answer | None:
    async with shelf.used(tenant, name, _bring) as refused:
        return refused


async def _bring() -> bytes:
    return an_adapter()


async def test_rows_that_come_together_load_an_adapter_once(loader: _Loader) -> None:
    shelf = _shelf(loader)

    assert await asyncio.gather(*(_use(shelf, "m:file-a") for _ in range(5))) == [None] * 5
    assert loader.times == 1
    assert shelf.names == [("acme", "m:file-a")]


async def test_a_loaded_adapter_is_unknown_to_other_tenants(loader: _Loader) -> None:
    shelf = _shelf(loader)
    await _use(shelf, "m:file-a")

    assert not shelf.has("umbrella", "m:file-a")
    assert await _use(shelf, "m:file-a", "umbrella") == unknown("m:file-a")


async def test_the_least_recently_used_one_gives_way_and_leaves_nothing(
    loader: _Loader, tmp_path: Path
) -> None:
    shelf = _shelf(loader)
    for name in ("m:file-a", "m:file-b", "m:file-a", "m:file-c"):
        await _use(shelf, name)

    assert loader.folders.keys() == {"m:file-a", "m:file-c"}
    assert set(tmp_path.iterdir()) == set(loader.folders.values())  # noqa: ASYNC240  # a test


async def test_nothing_gives_way_that_is_in_use(loader: _Loader) -> None:
    shelf = _shelf(loader, kept=1)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(shelf.used("acme", "m:file-a", _bring))
        waiting = asyncio.create_task(_use(shelf, "m:file-b"))
        await asyncio.sleep(0.05)
        assert loader.folders.keys() == {"m:file-a"}

    assert await waiting is None
    assert loader.folders.keys() == {"m:file-b"}


async def test_a_deleted_one_goes_when_its_last_row_has_ended(loader: _Loader) -> None:
    shelf = _shelf(loader)
    async with shelf.used("acme", "m:file-a", _bring):
        await shelf.forget(["m:file-a", "m:file-none"])
        assert not shelf.has("acme", "m:file-a")
        assert await _use(shelf, "m:file-a") == unknown("m:file-a")
        assert loader.folders.keys() == {"m:file-a"}

    await eventually(lambda: not loader.folders)
    assert shelf.names == []


@pytest.mark.parametrize(
    ("error", "status"), [(LoadError("it does not fit"), 400), (EngineGoneError("dead"), 500)]
)
async def test_what_cannot_be_loaded_says_why_and_leaves_nothing(
    loader: _Loader, tmp_path: Path, error: Exception, status: int
) -> None:
    shelf, loader.error = _shelf(loader), error

    refused = await _use(shelf, "m:file-a")

    assert refused is not None
    assert refused[0] == status
    assert str(error).encode() in refused[1]
    assert list(tmp_path.iterdir()) == []  # noqa: ASYNC240  # a test
    loader.error = None
    assert await _use(shelf, "m:file-a") is None
