"""One fleet for all end-to-end tests: real servers, Ray and vLLM, as `batchyard up` starts them."""

import asyncio
import json
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from openai import OpenAI, OpenAIError
from openai.types import Batch

from cli.fleet import Fleet, Options
from cli.fleet.catalog import CHAT_MODEL, EMBED_MODEL, VISION_MODEL, make_catalog
from cli.fleet.credentials import Credentials
from cli.servers import Child
from cli.servers.http import is_well
from shared.state import State
from shared.storage import Storage
from tests.eventually import wait_until

FINAL = ("completed", "failed", "expired", "cancelled")
BROKEN_MODEL = "broken"
#: Where pictures of the model that sees may be, besides S3.
MEDIA_HOST = "127.0.0.1"
#: What a cold engine may need on a busy machine with two cores.
COLD_SECONDS = 1800
#: What anything else may need there, while other parts of the tests start engines of their own.
WARM_SECONDS = 600
#: Asks rarely: each answer of a gateway costs milliseconds that the engines beside it lack.
until = partial(wait_until, pause=0.05)


class RunningFleet:
    """The fleet, and what a test may do to it."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.environment = fleet.client_environment()
        self.run_dir = fleet.run_dir
        self.addresses = fleet.addresses
        self.client = self.client_with(fleet.credentials.api_key)
        self.first_batches: dict[str, Batch] = {}
        self._submitted: list[tuple[OpenAI, str]] = []

    def start_engines(self) -> None:
        """All at once: an engine's start is one core's work, and whoever needs it waits for it."""
        self.first_batches = {
            CHAT_MODEL: self.submit(chat_lines(1), "/v1/chat/completions"),
            EMBED_MODEL: self.submit(embedding_lines(["hello"]), "/v1/embeddings"),
        }
        self._submitted.clear()

    def client_with(self, key: str) -> OpenAI:
        return OpenAI(base_url=self._fleet.base_url, api_key=key)

    def client_of(self, tenant: str) -> OpenAI:
        async def create() -> str:
            state = self.state()
            key = await state.keys.create(tenant)
            await state.close()
            return key

        return self.client_with(asyncio.run(create()))

    def state(self) -> State:
        return State(self.addresses.redis_url)

    def storage(self) -> Storage:
        return Storage(
            self.addresses.s3_endpoint,
            self.addresses.s3_access_key,
            self.addresses.s3_secret_key,
            "batchyard",
        )

    def submit(
        self, lines: bytes, endpoint: str, client: OpenAI | None = None, **extra: Any
    ) -> Batch:
        """Upload the lines and create their batch."""
        client = client or self.client
        file = client.files.create(file=("input.jsonl", lines), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id,
            endpoint=endpoint,  # type: ignore[arg-type]
            completion_window="24h",
            **extra,
        )
        self._submitted.append((client, batch.id))
        return batch

    def cancel_submitted(self) -> None:
        """End what tests have submitted, so that it takes no time from the next ones."""
        for client, batch_id in self._submitted:
            with suppress(OpenAIError):
                if client.batches.retrieve(batch_id).status not in FINAL:
                    client.batches.cancel(batch_id)
        self._submitted.clear()

    def wait(
        self, batch: Batch, client: OpenAI | None = None, *, seconds: float = WARM_SECONDS
    ) -> Batch:
        """The batch once it has ended."""
        client = client or self.client

        def ended() -> bool:
            nonlocal batch
            batch = client.batches.retrieve(batch.id)
            return batch.status in FINAL

        until(ended, seconds)
        return batch

    def results(self, batch: Batch, client: OpenAI | None = None) -> list[dict[str, Any]]:
        """The parsed lines of the batch's output file."""
        assert batch.output_file_id is not None
        return self._lines(batch.output_file_id, client)

    def errors(self, batch: Batch, client: OpenAI | None = None) -> list[dict[str, Any]]:
        """The parsed lines of the batch's error file."""
        assert batch.error_file_id is not None
        return self._lines(batch.error_file_id, client)

    def lane_jobs(self, model: str) -> list[psutil.Process]:
        """The processes of the model's lane job."""
        return [
            process
            for process in psutil.process_iter(["cmdline"])
            if (line := process.info["cmdline"])
            and line[1:4] == ["-m", "worker", "lane"]
            and line[4].startswith(f"{model}@")
        ]

    def engines(self, model: str) -> list[psutil.Process]:
        """The processes of the model's engine replicas."""
        catalog = self._fleet.catalog
        # Ray shortens a replica's title to its fingerprint while a call runs in it.
        mark = f"{catalog.fingerprint(catalog.lane_of(model))}:engine"
        return [
            process
            for process in psutil.process_iter(["cmdline"])
            if (line := process.info["cmdline"]) and line[0].startswith("ray::") and mark in line[0]
        ]

    def lane_job_log(self, model: str) -> list[dict[str, Any]]:
        """The JSON lines that the model's present lane job has logged."""
        arguments = self.lane_jobs(model)[0].cmdline()
        text = self._fleet.ray.job_log(arguments[arguments.index("--job") + 1])
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def restart_dispatcher(self, **environment: str) -> None:
        """Start it again, with these variables besides."""
        self._fleet.dispatchers[:1] = [self._restarted(self._fleet.dispatcher, environment)]

    @contextmanager
    def settings(self, **environment: str) -> Iterator[None]:
        """Gateway and dispatcher with these variables besides, and afterwards without them."""
        before = self._fleet.dispatcher, self._fleet.gateway
        try:
            self._start_instead(*(child.with_environment(environment) for child in before))
            yield
        finally:
            self._start_instead(*(child.with_environment({}) for child in before))

    def _start_instead(self, dispatcher: Child, gateway: Child) -> None:
        for old, new in ((self._fleet.dispatcher, dispatcher), (self._fleet.gateway, gateway)):
            old.stop(10)
            new.start()
        self._fleet.dispatchers[:1], self._fleet.gateways[:1] = [dispatcher], [gateway]
        wait_until(self._answers)

    def _answers(self) -> bool:
        return is_well(f"{self.root_url}/readyz")

    @property
    def dispatcher(self) -> Child:
        return self._fleet.dispatcher

    @property
    def credentials(self) -> Credentials:
        return self._fleet.credentials

    @property
    def ray_address(self) -> str:
        """Where Ray's job API answers."""
        return self._fleet.ray.address

    @property
    def root_url(self) -> str:
        """The gateway's address, without the version of the API."""
        return self._fleet.base_url.removesuffix("/v1")

    @property
    def pids(self) -> list[int]:
        """The processes that the fleet was started as."""
        return [child.pid for child in self._fleet.children() if child.pid is not None]

    def _restarted(self, old: Child, environment: dict[str, str]) -> Child:
        old.stop(10)
        child = old.with_environment(environment)
        child.start()
        return child

    def _lines(self, file_id: str, client: OpenAI | None) -> list[dict[str, Any]]:
        text = (client or self.client).files.content(file_id).text
        return [json.loads(line) for line in text.split("\n") if line]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            # The first test of a lane waits for its engine.
            item.add_marker(pytest.mark.timeout(2 * COLD_SECONDS))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that fails may leave thousands of rows, behind which the next ones would fail too."""
    report = yield
    fleet = item.funcargs.get("fleet") if isinstance(item, pytest.Function) else None
    if report.failed and isinstance(fleet, RunningFleet):
        fleet.cancel_submitted()
    return report


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFleet]:
    run_dir = tmp_path_factory.mktemp("fleet")
    catalog = yaml.safe_load(make_catalog(run_dir, []).read_text())
    # A narrow engine: few rows are enough to be more than it runs at once.
    catalog["models"][CHAT_MODEL]["engine"]["max_num_seqs"] = 48
    catalog["models"][VISION_MODEL]["media_domains"] = [MEDIA_HOST]
    catalog["models"][BROKEN_MODEL] = {
        "source": str(run_dir / "nowhere"),
        "pools": ["local"],
    }
    path = run_dir / "test-catalog.yaml"
    path.write_text(yaml.safe_dump(catalog))
    running = Fleet(Options(run_dir, catalog=path), report=print)
    try:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("BATCHYARD_MEDIA_NETWORKS", f'["{MEDIA_HOST}/32"]')
            # A cluster that gives way would be starved by other parts of the tests.
            environment.setenv("RAY_worker_niceness", "0")
            running.start()
        with suppress(OSError):
            Path(f"/proc/{running.ray.child.pid}/autogroup").write_text("0")
        fleet = RunningFleet(running)
        fleet.start_engines()
        yield fleet
    finally:
        running.stop()
        if keep := os.environ.get("BATCHYARD_KEEP_LOGS"):
            _copy_logs(run_dir, Path(keep))


@pytest.fixture(scope="session")
def warm_chat(fleet: RunningFleet) -> RunningFleet:
    """The fleet with a lane job and an engine that serve the chat model."""
    batch = fleet.first_batches[CHAT_MODEL]
    assert fleet.wait(batch, seconds=COLD_SECONDS).status == "completed"
    return fleet


@pytest.fixture(scope="session")
def warm_embeddings(fleet: RunningFleet) -> RunningFleet:
    """The fleet with a lane job and an engine that serve the embedding model."""
    batch = fleet.first_batches[EMBED_MODEL]
    assert fleet.wait(batch, seconds=COLD_SECONDS).status == "completed"
    return fleet


def request_lines(endpoint: str, bodies: Sequence[dict[str, Any]]) -> bytes:
    """An input file; the custom ids are `row-0`, `row-1`, …"""
    return b"".join(
        json.dumps(
            {"custom_id": f"row-{row}", "method": "POST", "url": endpoint, "body": body}
        ).encode()
        + b"\n"
        for row, body in enumerate(bodies)
    )


def chat_lines(rows: int, *, tokens: int = 8, model: str = CHAT_MODEL) -> bytes:
    """Chat requests that generate exactly `tokens` tokens each."""
    return request_lines(
        "/v1/chat/completions",
        [
            {
                "model": model,
                "messages": [{"role": "user", "content": f"Row {row}."}],
                "max_tokens": tokens,
                "ignore_eos": True,
            }
            for row in range(rows)
        ],
    )


def embedding_lines(texts: Sequence[str]) -> bytes:
    """Embedding requests, one text each."""
    return request_lines(
        "/v1/embeddings", [{"model": EMBED_MODEL, "input": text} for text in texts]
    )


def _copy_logs(run_dir: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    for log in run_dir.rglob("*.log"):
        (target / log.name).write_bytes(log.read_bytes())
