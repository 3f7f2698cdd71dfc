"""People who ask a model and wait: streams, and what their callers saw of them."""

import asyncio
import json
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle

import aiohttp

from benchmarks.bench_fleet import BenchFleet
from benchmarks.rows import CHAT, URLS, body, texts

_TEXTS = 200


@dataclass(frozen=True)
class Door:
    """Where calls go."""

    url: str
    model: str
    api_key: str = ""


def door_of(fleet: BenchFleet) -> Door:
    """The gateway's, for the chat model."""
    url = fleet.fleet.base_url.removesuffix("/v1")
    return Door(url, fleet.models[CHAT], fleet.fleet.credentials.api_key)


@dataclass
class Seen:
    """What callers saw. Times in milliseconds."""

    first: list[float] = field(default_factory=list)
    #: From each token to the next.
    gaps: list[float] = field(default_factory=list)
    calls: int = 0
    seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Calls a second."""
        return self.calls / self.seconds

    def add(self, other: "Seen") -> None:
        """Take what others saw, at another time."""
        self.first += other.first
        self.gaps += other.gaps
        self.calls += other.calls
        self.seconds += other.seconds


def percentile(values: Sequence[float], percent: int) -> float:
    """The value that so many percent do not exceed."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


async def ask(
    door: Door,
    *,
    at_once: int,
    tokens: int,
    calls: int | None = None,
    seconds: float | None = None,
    pause: float = 0.0,
) -> Seen:
    """So many callers, one call after the other, until `calls` were made or `seconds` are over."""
    seen = Seen()
    questions = cycle(enumerate(texts(_TEXTS)))
    began = time.perf_counter()
    left = iter(range(calls)) if calls is not None else iter(int, 1)

    async def one(session: aiohttp.ClientSession) -> None:
        for _ in left:
            if seconds is not None and time.perf_counter() - began >= seconds:
                break
            number, text = next(questions)
            # Nobody's prompt is in the prefix cache.
            await _call(session, door, f"{time.time_ns()} {number} {text}", tokens, seen)
            if pause:
                await asyncio.sleep(pause)

    connector = aiohttp.TCPConnector(limit=at_once)
    async with aiohttp.ClientSession(connector=connector) as session:
        await asyncio.gather(*(one(session) for _ in range(at_once)))
    seen.seconds = time.perf_counter() - began
    return seen


async def _call(
    session: aiohttp.ClientSession, door: Door, text: str, tokens: int, seen: Seen
) -> None:
    asked = body(CHAT, text, model=door.model, tokens=tokens) | {"stream": True}
    headers = {"authorization": f"Bearer {door.api_key}"} if door.api_key else {}
    last = time.perf_counter()
    is_first = True
    async with session.post(door.url + URLS[CHAT], json=asked, headers=headers) as answer:
        if answer.status != 200:  # noqa: PLR2004  # HTTP's OK
            raise RuntimeError(f"{answer.status}: {await answer.text()}")
        async for line in answer.content:
            if not line.startswith(b"data: {") or not _has_text(line):
                continue
            now = time.perf_counter()
            (seen.first if is_first else seen.gaps).append(1000 * (now - last))
            last, is_first = now, False
    seen.calls += 1


def _has_text(line: bytes) -> bool:
    with suppress(LookupError):
        return bool(json.loads(line[len(b"data: ") :])["choices"][0]["delta"].get("content"))
    return False
