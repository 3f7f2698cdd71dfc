"""The real dispatcher and lane jobs, on a simulated engine that dies of planted rows."""

import asyncio
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.asyncio import Redis

from cli import servers
from cli.servers import free_port
from dispatcher.cluster import Cluster
from dispatcher.lanes import LaneKeeper
from shared.catalog_file import load_catalog
from shared.lifecycle import FINAL
from shared.state import BatchRecord, State
from shared.state.state import NAMESPACE
from shared.storage import Storage
from shared.tasks import end
from tests.batches import submitted
from tests.chaos.checker import run_after_answer
from tests.chaos.engine import HANG, KILL, answers_beside
from tests.chaos.journal import read
from tests.chaos.rows import CHAT
from tests.eventually import eventually
from tests.integration.dispatcher.conftest import a_leader, a_planner
from tests.servers import S3
from worker.settings import WorkerSettings

_ROOT = Path(__file__).parents[3]
LANE = "m@cpu"
#: Much longer than a call takes, so that a slow machine is not taken for a hanging engine.
_HANG_SECONDS = 2
CATALOG = f"""\
pools: {{cpu: {{resources: {{CPU: 1}}}}}}
models:
  m: {{source: SOURCE, pools: [cpu], hang_seconds: {_HANG_SECONDS}, engine: {{max_num_seqs: 256}}}}
"""


@dataclass
class MortalEngine:
    """The simulated engine, restarted whenever it dies, as Ray would."""

    port: int
    journal: Path
    hang_seconds: float
    deaths: list[float] = field(default_factory=list)
    starts: int = 0
    #: After this many deaths it stays dead until `may_start` is set.
    hold_at: int | None = None
    may_start: asyncio.Event = field(default_factory=asyncio.Event)

    async def live(self) -> None:
        """Start it again and again, until cancelled."""
        self.may_start.set()
        while True:
            await self.may_start.wait()
            self.starts += 1
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "tests.chaos.engine",
                "127.0.0.1", str(self.port), str(self.journal), str(self.hang_seconds),
                cwd=_ROOT,
            )  # fmt: skip
            try:
                await process.wait()
            finally:
                with suppress(ProcessLookupError):
                    process.kill()
                # Nobody would take note of its end once the loop is closed.
                await process.wait()
            self.deaths.append(time.time())
            if len(self.deaths) == self.hold_at:
                self.may_start.clear()

    def mend(self) -> None:
        """Make planted rows harmless."""
        Path(f"{self.journal}.mended").touch()

    def take_seconds(self, seconds: float) -> None:
        """Let it take so long for each call from now on."""
        Path(f"{self.journal}.seconds").write_text(str(seconds))

    def rows_seen(self) -> Counter[str]:
        """How often each row was in it, by its name."""
        return Counter(row for run in self.runs() for row in run["rows"])

    def rows_answered(self) -> int:
        """How many rows it has answered."""
        return sum(len(call["rows"]) for call in read(answers_beside(self.journal)))

    def rows_run_after_their_answer(self) -> Counter[tuple[str, str]]:
        """How often each row, by batch and name, ran again although it had been answered."""
        return run_after_answer(self.runs(), read(answers_beside(self.journal)))

    def runs(self) -> list[dict[str, Any]]:
        """Its journal: when each call came, under which claim, with which rows."""
        return read(self.journal)


@dataclass(frozen=True)
class StubFleet:
    """The fleet, and what tests do with it."""

    state: State
    storage: Storage
    engine: MortalEngine
    catalog_file: Path
    redis_url: str

    async def submit(self, body: bytes, **changes: Any) -> str:
        """A batch over an input of these bytes."""
        return await submitted(self.state, self.storage, body, **changes)

    def set_seats(self, seats: int) -> None:
        """Let the engine of the next lane job compute so many rows at once."""
        text = self.catalog_file.read_text()
        self.catalog_file.write_text(text.replace("max_num_seqs: 256", f"max_num_seqs: {seats}"))

    async def is_free(self, batch_id: str) -> bool:
        """Whether no lane job holds a slice of the batch."""
        return await self.state.claims.inflight(batch_id) == 0

    async def end_of(self, batch_id: str, *, seconds: float = 100) -> BatchRecord:
        """The batch's record once it has ended."""

        async def has_ended() -> bool:
            return (await self.state.batches.get(batch_id)).status in FINAL

        await eventually(has_ended, timeout=seconds)
        return await self.state.batches.get(batch_id)

    async def strikes_of(self, batch_id: str) -> dict[str, str]:
        """The number of strikes of each slice that has any."""
        redis: Redis[str] = Redis.from_url(self.redis_url, decode_responses=True)
        try:
            strikes: dict[str, str] = await redis.hgetall(f"{NAMESPACE}strikes:{batch_id}")
            return strikes
        finally:
            await redis.aclose()

    async def results(self, record: BatchRecord, kind: str) -> list[dict[str, Any]]:
        """The lines of its output or error file; empty without such a file."""
        if (file_id := record.fields.get(f"{kind}_file_id")) is None:
            return []
        file = await self.state.files.get(record.tenant, file_id)
        return [json.loads(line) for line in (await self.storage.get(file.key)).splitlines()]


def requests(
    rows: int, *, deadly: Sequence[int] = (), hanging: Sequence[int] = (), name: str = "row"
) -> bytes:
    """An input in which the rows with these numbers kill the engine, or make it hang."""
    verbs = {row: f"answer {row}" for row in range(rows)}
    verbs |= dict.fromkeys(deadly, KILL) | dict.fromkeys(hanging, HANG)
    return b"".join(
        json.dumps(
            {
                "custom_id": f"{name}-{row}",
                "method": "POST",
                "url": CHAT,
                "body": {
                    "model": "m",
                    "messages": [{"role": "user", "content": verb}],
                },
            }
        ).encode()
        + b"\n"
        for row, verb in verbs.items()
    )


@pytest.fixture
async def stub_fleet(
    redis_server: servers.Redis, storage: Storage, s3: S3, tmp_path: Path
) -> AsyncIterator[StubFleet]:
    catalog_file = tmp_path / "catalog.yaml"
    catalog_file.write_text(CATALOG.replace("SOURCE", "any"))
    hang_seconds = load_catalog(catalog_file).model("m").hang_seconds
    engine = MortalEngine(free_port(), tmp_path / "engine.jsonl", hang_seconds)
    engine.journal.touch()
    ray_port = free_port()
    jobs = await _start_jobs(ray_port, tmp_path, _environment(redis_server, storage, s3, engine))
    state = State(redis_server.url)
    cluster = Cluster(f"http://127.0.0.1:{ray_port}", "token")
    planner = a_planner(state, storage, load_catalog(catalog_file), rows=128)
    keeper = LaneKeeper(state, storage, cluster, ready_rows=512, silence_seconds=60, attempts=5)
    leader = a_leader(state, storage, planner, keeper)
    tasks = [asyncio.create_task(engine.live()), asyncio.create_task(leader.lead())]
    try:
        yield StubFleet(state, storage, engine, catalog_file, redis_server.url)
    finally:
        await end(*tasks, patience_seconds=5)
        # The jobs too: they all belong to its session.
        os.killpg(jobs.pid, signal.SIGKILL)
        await jobs.wait()
        await cluster.close()
        await state.close()


async def _start_jobs(
    port: int, folder: Path, environment: dict[str, str]
) -> asyncio.subprocess.Process:
    jobs = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.chaos.cluster", "127.0.0.1", str(port), str(folder),
        cwd=_ROOT, env=environment, start_new_session=True,
    )  # fmt: skip

    async def answers() -> bool:
        async with httpx.AsyncClient(timeout=5) as http:
            with suppress(httpx.HTTPError):
                return bool(await http.get(f"http://127.0.0.1:{port}/api/jobs/none"))
        return False

    await eventually(answers)
    return jobs


def worker_settings(redis_url: str, s3: S3, catalog: Path, **changes: Any) -> WorkerSettings:
    """The settings of a lane job in the test's own process."""
    wanted = {
        "redis_url": redis_url,
        "s3_endpoint": s3.endpoint,
        "s3_access_key": s3.access_key,
        "s3_secret_key": s3.secret_key,
        "catalog": catalog,
    }
    return WorkerSettings.model_validate(wanted | changes)


def _environment(
    redis: servers.Redis, storage: Storage, s3: S3, engine: MortalEngine
) -> dict[str, str]:
    inherited = {name: text for name, text in os.environ.items() if "BATCHYARD" not in name}
    return {
        **inherited,
        "PYTHONPATH": str(_ROOT),
        "BATCHYARD_REDIS_URL": redis.lane_url,
        "BATCHYARD_S3_ENDPOINT": s3.endpoint,
        "BATCHYARD_S3_ACCESS_KEY": s3.access_key,
        "BATCHYARD_S3_SECRET_KEY": s3.secret_key,
        "BATCHYARD_S3_BUCKET": storage.bucket,
        "BATCHYARD_CATALOG": str(engine.journal.parent / "catalog.yaml"),
        "BATCHYARD_LANE_ENGINE_DEATHS": "5",
        "CHAOS_ENGINE_HOST": "127.0.0.1",
        "CHAOS_ENGINE_PORT": str(engine.port),
    }
