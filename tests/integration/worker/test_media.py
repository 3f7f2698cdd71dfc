"""Media that requests name by URLs: what is fetched for whom, and what never is."""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from ipaddress import ip_network
from typing import Any

import pytest

from shared.input_places import InputPlaces
from shared.media_fetcher import MediaFetcher
from shared.openai.media import MediaLimits, MediaRules
from shared.openai.row_rules import RowRules
from shared.ordering.work import Work
from shared.outbound import Guard, Network, Resolver
from shared.storage import Storage
from tests.eventually import eventually
from tests.faults.s3_proxy import Refusal, S3Proxy, s3_proxy
from tests.media_host import FILE, MediaHost, media_host
from tests.servers import S3
from worker.engine_errors import EngineGoneError, EngineUnavailableError, Result, Results
from worker.media_engine import MediaEngine

_LOOPBACK: tuple[Network, ...] = (ip_network("127.0.0.0/8"),)
_PLACES = {"*": ["s3://shared-media/{tenant}/"]}
_DATA = "data:application/octet-stream;base64," + base64.b64encode(FILE).decode()


class _Engine:
    """Answers each line with its own bytes; dies of lines with `die` in them."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self.withdrawn: list[str] = []

    async def run_lines(
        self, lines: Sequence[bytes], order: Sequence[Work]
    ) -> AsyncGenerator[Results, None]:
        assert len(lines) == len(order)
        self.seen += lines
        for number, line in enumerate(lines):
            if b"die" in line:
                raise EngineGoneError("it died", [number])
            yield [(number, (200, line))]

    async def withdraw(self, batch_id: str) -> None:
        self.withdrawn.append(batch_id)


@pytest.fixture
def host() -> Iterator[MediaHost]:
    with media_host() as host:
        yield host


@asynccontextmanager
async def _an_engine(
    storage: Storage,
    *,
    networks: tuple[Network, ...] = _LOOPBACK,
    limits: MediaLimits | None = None,
    resolve: Resolver | None = None,
    domains: frozenset[str] = frozenset({"127.0.0.1", "media.example"}),
) -> AsyncIterator[tuple[MediaEngine, _Engine]]:
    guard, engine = Guard(networks, resolve=resolve), _Engine()
    rules = RowRules(media=MediaRules(domains=domains, limits=limits or MediaLimits()))
    fetcher = MediaFetcher(lambda: storage, guard, timeout_seconds=60)
    places = InputPlaces(storage.bucket, "inbox/{tenant}/", _PLACES)
    yield MediaEngine(engine, fetcher, rules, places), engine
    guard.close()


async def test_the_engine_gets_the_bytes_of_what_a_request_names(
    storage: Storage, host: MediaHost
) -> None:
    await storage.put("inbox/acme/a b?c.png", FILE)
    urls = [f"http://127.0.0.1:{host.server_port}/a", f"s3://{storage.bucket}/inbox/acme/a b?c.png"]

    async with _an_engine(storage) as (engine, behind):
        results = await _run(engine, _line("text alone"), _line("both", *urls), _line("b", *urls))

    assert sorted(results) == [0, 1, 2]
    assert [_urls(results[number]) for number in (1, 2)] == [[_DATA, _DATA]] * 2
    assert all(b"s3://" not in line and b"http://" not in line for line in behind.seen)


async def test_a_tenant_gets_nothing_of_another_ones_places(storage: Storage) -> None:
    await storage.put("inbox/umbrella/a.png", FILE)
    url = f"s3://{storage.bucket}/inbox/umbrella/a.png"

    async with _an_engine(storage) as (engine, behind):
        results = await _run(engine, _line("x", url))
        others = await _run(engine, _line("x", url), tenant="umbrella")

    assert _error(results[0])["param"] == "messages.0.content.1.image_url"
    assert len(behind.seen) == 1
    assert _urls(others[0]) == [_DATA]


async def test_an_object_that_is_not_there_costs_its_own_row_alone(storage: Storage) -> None:
    missing = f"s3://{storage.bucket}/inbox/acme/none"

    async with _an_engine(storage) as (engine, _):
        results = await _run(engine, _line("x", missing), _line("y"))

    assert "no such object" in _error(results[0])["message"]
    assert results[1][0] == 200


@pytest.mark.parametrize("networks", [(), (ip_network("10.0.0.0/8"),)])
async def test_a_domain_that_leads_to_a_private_address_is_not_called(
    storage: Storage, host: MediaHost, networks: tuple[Network, ...]
) -> None:
    """The operator has named the domain; its owner lets it point into the fleet."""

    async def resolve(_: str, __: int) -> list[str]:
        return ["127.0.0.1"]

    open_port = f"http://media.example:{host.server_port}/secret"
    closed_port = "http://media.example:1/secret"
    async with _an_engine(storage, networks=networks, resolve=resolve) as (engine, behind):
        results = await _run(engine, _line("x", open_port), _line("x", closed_port))

    assert host.paths == []
    assert behind.seen == []
    messages = {_error(result)["message"] for result in results.values()}
    # The answers must not tell an open port from a closed one.
    assert len(messages) == 1


async def test_an_address_that_changes_after_it_was_checked_is_not_called(
    storage: Storage, host: MediaHost
) -> None:
    """DNS rebinding: the second lookup would have another answer."""
    answers = iter([["127.0.0.1"]])

    async def resolve(_: str, __: int) -> list[str]:
        return next(answers, ["10.9.8.7"])

    async with _an_engine(storage, resolve=resolve) as (engine, _):
        url = f"http://media.example:{host.server_port}/a"
        results = await _run(engine, _line("x", url))

    # One lookup, and the connection went to its answer.
    assert _urls(results[0]) == [_DATA]
    assert host.paths == ["/a"]


async def test_a_host_that_is_busy_is_asked_again_and_one_that_stays_so_costs_its_own_row(
    storage: Storage, host: MediaHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.media_fetcher._PAUSES", (0.0, 0.0))
    busy, broken = (f"http://127.0.0.1:{host.server_port}/{name}" for name in ("busy", "broken"))

    async with _an_engine(storage) as (engine, behind):
        found = await _run(engine, _line("x", busy))
        lost = await _run(engine, _line("x", broken), _line("text alone"))

    assert _urls(found[0]) == [_DATA]
    assert host.paths == ["/busy"] * 3 + ["/broken"] * 3
    assert "503" in _error(lost[0])["message"]
    assert lost[1][0] == 200
    assert len(behind.seen) == 2


async def test_a_host_that_hangs_up_is_asked_again(
    storage: Storage, host: MediaHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.media_fetcher._PAUSES", (0.0, 0.0))

    async with _an_engine(storage) as (engine, _):
        results = await _run(engine, _line("x", f"http://127.0.0.1:{host.server_port}/cut"))

    assert host.paths == ["/cut"] * 3
    assert _urls(results[0]) == [_DATA]


async def test_a_redirect_is_not_followed(storage: Storage, host: MediaHost) -> None:
    url = f"http://127.0.0.1:{host.server_port}/redirect"

    async with _an_engine(storage) as (engine, behind):
        results = await _run(engine, _line("x", url))

    assert "302" in _error(results[0])["message"]
    assert host.paths == ["/redirect"]
    assert behind.seen == []


async def test_what_is_too_large_is_read_no_further(storage: Storage, host: MediaHost) -> None:
    await storage.put("inbox/acme/large", b"x" * 2000)
    endless = f"http://127.0.0.1:{host.server_port}/endless"
    large = f"s3://{storage.bucket}/inbox/acme/large"
    small = f"http://127.0.0.1:{host.server_port}/a"

    limits = MediaLimits(bytes=2 * len(FILE))
    async with _an_engine(storage, limits=limits) as (engine, _):
        results = await _run(
            engine, _line("x", endless), _line("x", large), _line("x", small, small, small),
            _line("x", small, small),
        )  # fmt: skip

    for number in range(3):
        assert f"{limits.bytes} bytes" in _error(results[number])["message"]
    assert _urls(results[3]) == [_DATA] * 2


async def test_while_s3_is_away_rows_wait_and_have_no_result(s3: S3, storage: Storage) -> None:
    await storage.put("inbox/acme/a", FILE)
    url = f"s3://{storage.bucket}/inbox/acme/a"
    with _behind_proxy(s3, storage) as (proxy, behind):
        proxy.judge = lambda *_: Refusal(500, "UnknownError")
        async with _an_engine(behind) as (engine, _):
            with pytest.raises(EngineUnavailableError):
                await _run(engine, _line("x", url))
        proxy.judge = lambda _, path: Refusal(500, "UnknownError") if "inbox" in path else None
        async with _an_engine(behind) as (engine, _):
            results = await _run(engine, _line("x", url))

    assert "fails to answer for this object" in _error(results[0])["message"]


async def test_an_engine_that_dies_names_the_rows_that_it_died_with(
    storage: Storage, host: MediaHost
) -> None:
    url = f"http://127.0.0.1:{host.server_port}/a"
    lines = [_line("x"), _line("die", url), _line("y")]

    async with _an_engine(storage) as (engine, _):
        with pytest.raises(EngineGoneError) as gone:
            await _run(engine, *lines)

    assert gone.value.positions == [1]


async def test_a_batch_that_stops_takes_back_rows_that_wait_for_their_media(
    storage: Storage,
) -> None:
    async with _silent_host() as port, _an_engine(storage) as (engine, behind):
        url = f"http://127.0.0.1:{port}/a"
        running = asyncio.ensure_future(_run(engine, _line("x", url), _line("y")))
        await eventually(lambda: bool(behind.seen))
        await engine.withdraw("batch_1")
        results = await running

    assert sorted(results) == [1]
    assert behind.withdrawn == ["batch_1"]


async def _run(engine: MediaEngine, *lines: bytes, tenant: str = "acme") -> dict[int, Result]:
    order = [
        Work(
            batch_id="batch_1",
            number=number,
            tenant=tenant,
            priority=0,
            created_at=0,
            expires_at=1,
            tokens=1,
        )
        for number, _ in enumerate(lines)
    ]
    results: dict[int, Result] = {}
    async with aclosing(engine.run_lines(lines, order)) as groups:
        async for group in groups:
            results.update(group)
    return results


def _line(text: str, *urls: str) -> bytes:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    content = [{"type": "text", "text": text}, *parts]
    body = {"model": "m", "messages": [{"role": "user", "content": content}]}
    return json.dumps({"custom_id": "a", "url": "/v1/chat/completions", "body": body}).encode()


def _urls(result: Result) -> list[str]:
    """Of the line that the engine got."""
    assert result[0] == 200, result
    content = json.loads(result[1])["body"]["messages"][0]["content"]
    return [part["image_url"]["url"] for part in content if "image_url" in part]


def _error(result: Result) -> dict[str, Any]:
    assert result[0] == 400, result
    error: dict[str, Any] = json.loads(result[1])["error"]
    return error


@contextmanager
def _behind_proxy(s3: S3, storage: Storage) -> Iterator[tuple[S3Proxy, Storage]]:
    with s3_proxy(s3.endpoint) as proxy:
        keys = s3.access_key, s3.secret_key, storage.bucket
        behind = Storage(proxy.endpoint, *keys, attempts=1)
        try:
            yield proxy, behind
        finally:
            behind.close()


@asynccontextmanager
async def _silent_host() -> AsyncIterator[int]:
    over = asyncio.Event()

    async def serve(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        over.set()
        server.close()
