"""The cost of the gateway's calls, against a bare FastAPI route that reads Redis once.

What creating a batch has to write stands beside it: a route with one S3 put and one Redis script.
"""

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import aiohttp

from benchmarks.bench_yard import BenchYard, running_yard
from benchmarks.figures import Figure, bounded, compared
from benchmarks.rows import CHAT, URLS, lines
from cli.servers.ports import Ports
from cli.servers.process import Child, wait_ready

_MODEL = "m"
_CLIENTS = 64
_SECONDS = 4.0
#: What part of the bare route's calls per second there should be.
_GOALS = {"retrieve": 0.6, "list": 0.4, "create": 0.15}
#: Batches that exist when `list` is measured.
_LISTED = 100
_BARE = """
import asyncio
import io
import os
import secrets
import sys
import uvicorn
from fastapi import FastAPI
from minio import Minio
from redis.asyncio import Redis

app = FastAPI()
redis = Redis.from_url(sys.argv[1], decode_responses=True)
s3 = Minio(
    os.environ["BATCHYARD_S3_ENDPOINT"].partition("://")[2],
    access_key=os.environ["BATCHYARD_S3_ACCESS_KEY"],
    secret_key=os.environ["BATCHYARD_S3_SECRET_KEY"],
    secure=False,
)
write = redis.register_script("return redis.call('HSET', KEYS[1], unpack(ARGV))")

@app.get("/bare")
async def bare() -> dict[str, str]:
    return await redis.hgetall(sys.argv[3])

@app.post("/written")
async def written() -> dict[str, str]:
    name, body = secrets.token_hex(16), b"x" * 700
    await asyncio.to_thread(
        s3.put_object, "batchyard", f"bench/{name}.json", io.BytesIO(body), len(body)
    )
    await write(keys=[f"bench:{name}"], args=[str(number) for number in range(40)])
    return {"id": name}

uvicorn.run(app, port=int(sys.argv[2]), log_config=None, access_log=False)
"""


class Call(NamedTuple):
    """An HTTP call to repeat; each JSON body may differ."""

    method: str
    url: str
    body: Callable[[], Mapping[str, str]] | None = None


class Rate(NamedTuple):
    """Answers per second, and the 99th percentile of latency in milliseconds."""

    per_second: float
    p99: float


def http_rates(*, turns: int) -> list[Figure]:
    """Calls per second of 64 clients, each kind in turns with the bare route."""
    with tempfile.TemporaryDirectory(prefix="batchyard-http-") as folder:
        path = Path(folder)
        with running_yard(path, ("gateway",), model=_MODEL) as yard:
            return asyncio.run(_measure(yard, path, turns))


async def _measure(yard: BenchYard, folder: Path, turns: int) -> list[Figure]:
    headers = {"authorization": f"Bearer {yard.api_key}"}
    connector = aiohttp.TCPConnector(limit=_CLIENTS)
    async with aiohttp.ClientSession(headers=headers, connector=connector) as session:
        batches = f"{yard.address}/v1/batches"
        params = {
            "input_file_id": await _upload(session, yard),
            "endpoint": URLS[CHAT],
            "completion_window": "24h",
        }
        for _ in range(_LISTED):
            async with session.post(batches, json=params) as answer:
                answer.raise_for_status()
        async with session.get(batches) as answer:
            batch_id = (await answer.json())["last_id"]
        port = Ports(folder).get("bare")
        key = f"{{batchyard}}:batch:{batch_id}"
        command = [sys.executable, "-c", _BARE, yard.redis_url, str(port), key]
        bare = Child("bare", command, folder, environment=yard.environment)
        bare.start()
        try:
            route = Call("GET", f"http://127.0.0.1:{port}/bare")
            await asyncio.to_thread(_wait, route.url, bare)
            calls = {
                "retrieve": Call("GET", f"{batches}/{batch_id}"),
                "list": Call("GET", batches),
                "create": Call("POST", batches, lambda: params),
            }
            bare_calls = {
                "bare": route,
                "written": Call("POST", f"http://127.0.0.1:{port}/written"),
            }
            both = bare_calls | calls
            rates: dict[str, list[Rate]] = {name: [] for name in both}
            for _ in range(turns):
                for name, call in both.items():
                    rates[name].append(await _rate(session, call))
        finally:
            bare.stop()
    return _figures(rates)


def _figures(rates: dict[str, list[Rate]]) -> list[Figure]:
    per_second = {
        name: statistics.median(r.per_second for r in found) for name, found in rates.items()
    }
    p99 = {name: statistics.median(r.p99 for r in found) for name, found in rates.items()}
    return [
        *(
            compared(
                f"{name}, calls per second / bare route",
                per_second[name],
                per_second["bare"],
                unit="1/s",
                goal=goal,
                sense="at least",
            )
            for name, goal in _GOALS.items()
        ),
        bounded(
            "create, calls per second / a bare route of one S3 put and one Redis script",
            per_second["create"],
            per_second["written"],
            unit="1/s",
            goal=None,
        ),
        *(
            bounded(
                f"{name}, p99 of {_CLIENTS} clients", p99[name], p99["bare"], unit="ms", goal=None
            )
            for name in ("retrieve", "list", "create")
        ),
    ]


async def _rate(session: aiohttp.ClientSession, call: Call) -> Rate:
    spent: list[float] = []
    until = time.perf_counter() + _SECONDS

    async def client() -> None:
        while (began := time.perf_counter()) < until:
            body = call.body and call.body()
            async with session.request(call.method, call.url, json=body) as answer:
                await answer.read()
                answer.raise_for_status()
            spent.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(_CLIENTS)))
    per_second = len(spent) / (time.perf_counter() - began)
    return Rate(per_second, 1000 * statistics.quantiles(spent, n=100)[-1])


async def _upload(session: aiohttp.ClientSession, yard: BenchYard) -> str:
    form = aiohttp.FormData({"purpose": "batch"})
    form.add_field("file", lines(CHAT, 1, model=_MODEL), filename="rows.jsonl")
    async with session.post(f"{yard.address}/v1/files", data=form) as answer:
        file_id: str = (await answer.json())["id"]
    return file_id


def _wait(url: str, child: Child) -> None:
    async def ask() -> bool:
        try:
            async with aiohttp.ClientSession() as session, session.get(url) as answer:
                return answer.ok
        except aiohttp.ClientError:
            return False

    wait_ready(lambda: asyncio.run(ask()), [child], timeout_seconds=60)
