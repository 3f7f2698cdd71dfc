"""Two whole dispatchers beside each other: `python -m dispatcher`, on real servers."""

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from redis.asyncio import Redis

from cli.servers import free_port
from dispatcher.early_files import EarlyFiles
from dispatcher.early_process import STOP_SECONDS, EarlyProcess, Hurried, send
from dispatcher.early_server import serve
from dispatcher.hurry import Hurry
from shared.bus.connection import Bus
from shared.lifecycle import Event, Status
from shared.slices import Claim
from shared.state import BatchRecord, State
from shared.state.state import NAMESPACE
from shared.storage import Storage
from shared.tasks import end
from tests.batches import JOB, LANE, claim, in_status
from tests.conftest import minio_client
from tests.eventually import eventually, wait_until
from tests.integration.dispatcher.conftest import BatchYard, good, lines
from tests.processes import below_this
from tests.receiver import receiving
from tests.servers import S3
from tests.webhooks import an_endpoint, let_claims_run_out

#: The answers of a slice.
LARGE = [good("x" * 4 * 1024 * 1024)] * 3


@pytest.fixture
def lease_seconds() -> float:
    """Of the dispatchers' lease; a test may choose another one."""
    return 2.0


class Dispatcher:
    """One process and what it has logged."""

    def __init__(self, process: "subprocess.Popen[bytes]", log: Path) -> None:
        self.process = process
        self._log = log

    def said(self, event: str) -> int:
        """How often it logged this."""
        found = 0
        for text in self._log.read_text().splitlines():
            with contextlib.suppress(ValueError):
                found += json.loads(text).get("event") == event
        return found

    def is_ready(self) -> bool:
        return self.said("dispatcher.ready") > 0

    def leads(self) -> bool:
        return self.said("dispatcher.leads") > self.said("dispatcher.follows")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def text(self) -> str:
        return self._log.read_text()


@pytest.fixture
async def state(redis_url: str) -> AsyncIterator[State]:
    """A Redis database of its own: processes know no namespace."""
    url = f"{redis_url.rpartition('/')[0]}/9"
    admin: Redis[str] = Redis.from_url(url)
    await admin.flushdb()
    state = State(url)
    yield state
    await state.close()
    await admin.flushdb()
    await admin.aclose()


@pytest.fixture
def environment(
    bus: Bus,
    amqp_url: str,
    redis_url: str,
    s3: S3,
    storage: Storage,
    catalog_file: Path,
    lease_seconds: float,
) -> dict[str, str]:
    assert bus is not None
    return {
        **{name: text for name, text in os.environ.items() if "BATCHYARD" not in name},
        "BATCHYARD_AMQP_URL": amqp_url,
        "BATCHYARD_REDIS_URL": f"{redis_url.rpartition('/')[0]}/9",
        "BATCHYARD_S3_ENDPOINT": s3.endpoint,
        "BATCHYARD_S3_ACCESS_KEY": s3.access_key,
        "BATCHYARD_S3_SECRET_KEY": s3.secret_key,
        "BATCHYARD_S3_BUCKET": storage.bucket,
        "BATCHYARD_CATALOG": str(catalog_file),
        "BATCHYARD_RAY_ADDRESS": f"http://127.0.0.1:{free_port()}",
        "BATCHYARD_RAY_TOKEN": "token",
        "BATCHYARD_SERVICE_USER": urlsplit(amqp_url).username or "",
        "BATCHYARD_LEASE_SECONDS": str(lease_seconds),
    }


@pytest.fixture
def two(
    state: State, environment: dict[str, str], tmp_path: Path
) -> Iterator[tuple[Dispatcher, Dispatcher]]:
    """The one that leads, and the one that waits."""
    assert state is not None
    with running(environment, tmp_path) as one, running(environment, tmp_path) as other:
        wait_until(one.is_ready, 60)
        wait_until(other.is_ready, 60)
        wait_until(lambda: one.leads() or other.leads(), 30)
        yield (one, other) if one.leads() else (other, one)


@contextlib.contextmanager
def running(environment: dict[str, str], folder: Path) -> Iterator[Dispatcher]:
    """`python -m dispatcher`; ended for certain afterwards."""
    path = folder / secrets.token_hex(4)
    with path.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "dispatcher"],
            env=environment,
            cwd=Path(__file__).parents[3],
            stdout=log,
            stderr=log,
        )
    try:
        yield Dispatcher(process, path)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.wait(30)


async def test_one_that_stops_leaves_no_early_file_and_the_next_begins_another_one(
    yard: BatchYard, environment: dict[str, str], s3: S3, tmp_path: Path
) -> None:
    batch_id, last = await _almost_answered(yard)
    await yard.state.claims.release(last)
    with running(environment, tmp_path) as first:
        await eventually(lambda: len(_uploads(s3, yard.storage)) == 1)
        first.signal(signal.SIGTERM)
        wait_until(lambda: first.process.poll() is not None, 60)
    assert _uploads(s3, yard.storage) == set()

    with running(environment, tmp_path):
        await eventually(lambda: len(_uploads(s3, yard.storage)) == 1)
        again: list[Claim] = []

        async def is_claimed() -> bool:
            job = await yard.state.lanes.open_job(LANE, "", JOB)
            again.extend(await claim(yard.state, lease_seconds=3600, job=job))
            return bool(again)

        await eventually(is_claimed)
        await yard.commit(again[0], LARGE)
        await eventually(lambda: _is_completed(yard.state, batch_id))

    assert _uploads(s3, yard.storage) == set()


@contextlib.asynccontextmanager
async def early_process(
    yard: BatchYard, environment: dict[str, str], s3: S3, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[EarlyProcess, BatchRecord]]:
    """One that has begun the file of a batch, all of whose rows are answered by now."""
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    early = EarlyProcess(yard.state, Hurry())
    batch_id, last = await _almost_answered(yard)
    having = asyncio.create_task(early.run())
    try:
        await eventually(lambda: len(_uploads(s3, yard.storage)) == 1)
        await yard.commit(last, LARGE)
        yield early, await yard.state.batches.get(batch_id)
    finally:
        await end(having)


async def test_an_early_file_is_taken_from_its_process(
    yard: BatchYard, environment: dict[str, str], s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with early_process(yard, environment, s3, monkeypatch) as (early, record):
        taken = await early.take(record, Event.OUTPUT_COMMITTED)
        again = await early.take(record, Event.OUTPUT_COMMITTED)

    assert taken is not None
    assert taken.file is not None
    taken.check.finish(record.id)
    stored = await yard.storage.get(taken.file.key, etag=taken.file.etag)
    assert (len(stored), stored.count(b"\n")) == (taken.file.size, 12)
    assert again is None
    assert not _early_processes()


async def test_no_batch_waits_long_for_a_process_of_early_files_that_is_frozen(
    yard: BatchYard, environment: dict[str, str], s3: S3, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatcher.early_process._SILENT_SECONDS", 3)
    async with early_process(yard, environment, s3, monkeypatch) as (early, record):
        [frozen] = _early_processes()
        frozen.suspend()

        async with asyncio.timeout(30):
            assert await early.take(record, Event.OUTPUT_COMMITTED) is None
            # There is nothing to wait for while there is none.
            assert await early.take(record, Event.OUTPUT_COMMITTED) is None
        await eventually(lambda: not frozen.is_running())


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_process_of_early_files_that_has_not_begun_ends_at_once(
    yard: BatchYard, monkeypatch: pytest.MonkeyPatch, *, is_known: bool
) -> None:
    # As one that still imports, it hears nothing.
    monkeypatch.setattr("dispatcher.early_process._COMMAND", ("sleep", "9"))
    early = EarlyProcess(yard.state, Hurry())
    await yard.plan(lines(12))
    for _ in range(2):
        having = asyncio.create_task(early.run())
        await eventually(lambda: bool(below_this("sleep 9")))
        if is_known:
            # By then it is waited for.
            await asyncio.sleep(1)
        began = time.monotonic()
        await end(having)

        assert having.cancelled()
        assert time.monotonic() - began < STOP_SECONDS / 2
        await eventually(lambda: not below_this("sleep 9"))


async def test_batches_of_one_slice_need_no_early_files(
    yard: BatchYard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dispatcher.early_process._COMMAND", ("sleep", "9"))
    early = EarlyProcess(yard.state, Hurry())
    for _ in range(3):
        await yard.plan(lines(1))
    having = asyncio.create_task(early.run())
    await asyncio.sleep(2)
    assert not below_this("sleep 9")

    await yard.plan(lines(12))
    await eventually(lambda: bool(below_this("sleep 9")))
    await end(having)


async def test_a_process_of_early_files_that_dies_is_followed_by_another_one(
    yard: BatchYard, environment: dict[str, str], s3: S3, tmp_path: Path
) -> None:
    batch_id, last = await _almost_answered(yard)
    await yard.state.claims.release(last)
    with running(environment, tmp_path) as dispatcher:
        await eventually(lambda: len(_uploads(s3, yard.storage)) == 1)
        [killed] = _early_processes()
        killed.kill()

        # The upload of the one that was killed is swept after a day.
        await eventually(lambda: len(_uploads(s3, yard.storage)) == 2)
        assert killed not in _early_processes()
        assert dispatcher.said("early_files.died") == 1
        again = await yard.claim(batch_id)
        await yard.commit(again[0], LARGE)
        await eventually(lambda: _is_completed(yard.state, batch_id))
        assert len(_uploads(s3, yard.storage)) == 1


async def test_the_process_of_early_files_ends_with_a_dispatcher_that_is_killed(
    yard: BatchYard, environment: dict[str, str], s3: S3, tmp_path: Path
) -> None:
    await _almost_answered(yard)
    with running(environment, tmp_path) as dispatcher:
        await eventually(lambda: len(_uploads(s3, yard.storage)) == 1)
        [process] = _early_processes()
        # Who ends a group of processes tells them all.
        process.terminate()
        dispatcher.signal(signal.SIGKILL)

        wait_until(lambda: not process.is_running(), 30)

    assert _uploads(s3, yard.storage) == set()


async def test_the_process_of_early_files_is_told_of_a_hurry(
    yard: BatchYard, environment: dict[str, str]
) -> None:
    assert environment
    hurry = Hurry()
    ours, theirs = socket.socketpair()
    serving = asyncio.create_task(serve(EarlyFiles(yard.state, yard.storage, hurry), hurry, theirs))
    _, writer = await asyncio.open_unix_connection(sock=ours)
    async with asyncio.timeout(30):
        send(writer, Hurried(is_somebody=True))
        await hurry.somebody()
        send(writer, Hurried(is_somebody=False))
        await hurry.nobody()
        writer.close()
        await serving


async def test_one_leads_and_the_other_takes_over_when_it_is_killed(
    two: tuple[Dispatcher, Dispatcher], yard: BatchYard
) -> None:
    leader, other = two
    assert not other.leads()
    await eventually_in_progress(yard, await yard.submit(lines(3)))

    leader.signal(signal.SIGKILL)
    batch_id = await yard.submit(lines(3))

    # A lease that has just been renewed runs out, and the other one looks four times a lease.
    await eventually(other.leads)
    await eventually_in_progress(yard, batch_id)


async def test_its_port_shows_that_it_leads(
    state: State, environment: dict[str, str], tmp_path: Path
) -> None:
    assert state is not None
    port, token = free_port(), secrets.token_hex(16)
    asked = {"BATCHYARD_HEALTH_PORT": str(port), "BATCHYARD_METRICS_TOKEN": token}

    def metrics() -> str:
        url = f"http://127.0.0.1:{port}/metrics"
        return httpx.get(url, headers={"authorization": f"Bearer {token}"}, timeout=30).text

    with running(environment | asked, tmp_path) as one:
        wait_until(one.is_ready, 60)

        wait_until(lambda: "batchyard_dispatcher_leads 1.0" in metrics(), 30)


@pytest.mark.parametrize("lease_seconds", [40.0])
async def test_a_leader_that_is_asked_to_stop_hands_over_at_once(
    two: tuple[Dispatcher, Dispatcher], lease_seconds: float
) -> None:
    leader, other = two

    leader.signal(signal.SIGTERM)

    await eventually(lambda: leader.process.poll() is not None)
    assert leader.process.returncode == 0, leader.text()
    # Before the lease could have run out: the other one looks four times a lease.
    await eventually(other.leads, timeout=lease_seconds / 2)
    assert "Traceback" not in leader.text()


async def test_a_frozen_leader_that_wakes_follows_and_has_done_no_harm(
    two: tuple[Dispatcher, Dispatcher], yard: BatchYard, state: State
) -> None:
    leader, other = two
    # Plenty under way in the moment of the freeze: plans, ends, and what is about to be either.
    batch_ids = [await yard.submit(lines(200)) for _ in range(12)]
    for batch_id in batch_ids[::2]:
        await state.apply(batch_id, Event.CANCEL_REQUESTED)
    leader.signal(signal.SIGSTOP)

    await eventually(other.leads)
    ended = dict.fromkeys(batch_ids[::2], Status.CANCELLED)
    expected = {**ended, **dict.fromkeys(batch_ids[1::2], Status.IN_PROGRESS)}

    async def are_done() -> bool:
        return await state.batches.statuses(batch_ids) == {
            batch_id: expected[batch_id] for batch_id in batch_ids
        }

    await eventually(are_done, timeout=30)
    before = [await state.batches.get(batch_id) for batch_id in batch_ids]

    leader.signal(signal.SIGCONT)

    await eventually(lambda: leader.said("dispatcher.follows") == 1, timeout=15)
    assert [await state.batches.get(batch_id) for batch_id in batch_ids] == before
    assert other.leads()
    for record in before:
        # Each event counts one up: accepted, and one for every status since.
        since = {name for name in record.fields if name.endswith("_at")}
        assert record.number("sequence") == 1 + len(since - {"created_at", "expires_at"})


async def test_a_webhook_sent_by_a_dispatcher_that_died_is_sent_again_under_its_id(
    state: State, environment: dict[str, str], tmp_path: Path, redis_url: str
) -> None:
    environment |= {"BATCHYARD_WEBHOOK_NETWORKS": '["127.0.0.0/8"]'}
    dying = {**environment, "BATCHYARD_CRASH_AT": "dispatcher.webhook_sent"}
    async with receiving() as receiver:
        endpoint = await an_endpoint(state, receiver.url)
        await in_status(state, Status.COMPLETED)
        with running(dying, tmp_path) as dispatcher:
            await eventually(lambda: dispatcher.process.poll() is not None)
        assert dispatcher.process.returncode == -signal.SIGKILL
        assert (await endpoint.only()).attempts == []

        await let_claims_run_out(endpoint, f"{redis_url.rpartition('/')[0]}/9", NAMESPACE)
        with running(environment, tmp_path):
            await eventually(lambda: endpoint.has("delivered"))

    assert receiver.ids == [(await endpoint.only()).id] * 2


@pytest.mark.parametrize("begun", [False, True], ids=["in a wave's queue", "begun"])
async def test_a_batch_ends_soon_after_its_window_although_a_lane_job_holds_its_slices(
    begun: bool,
    environment: dict[str, str],
    yard: BatchYard,
    state: State,
    tmp_path: Path,
) -> None:
    with running(environment, tmp_path) as one:
        wait_until(one.leads, 60)
        expires_at = int(time.time()) + 6
        batch_id = await yard.submit(lines(6), expires_at=expires_at)
        await eventually_in_progress(yard, batch_id)
        claims: list[Claim] = []

        async def are_claimed() -> bool:
            # The dispatcher opens a job too, for a Ray that is not there; either will do.
            job = await state.lanes.open_job(LANE, "", JOB)
            claims.extend(await claim(state, lease_seconds=3600, job=job, begun=begun))
            return bool(claims)

        await eventually(are_claimed)
        # From here on as with a frozen lane job: no job notices that the batch closes.
        await eventually(lambda: is_in(state, batch_id, Status.EXPIRED))

    record = await state.batches.get(batch_id)
    assert 0 <= record.number("expired_at") - expires_at <= 3


async def eventually_in_progress(yard: BatchYard, batch_id: str) -> None:
    """Return when the batch runs."""

    async def is_in_progress() -> bool:
        return (await yard.state.batches.get(batch_id)).status is Status.IN_PROGRESS

    await eventually(is_in_progress, timeout=15)


async def is_in(state: State, batch_id: str, status: Status) -> bool:
    return (await state.batches.get(batch_id)).status is status


async def _almost_answered(yard: BatchYard) -> tuple[str, Claim]:
    """A batch whose output is worth an early file, and its last slice, which has no answers."""
    batch_id = await yard.plan(lines(12))
    *claims, last = await yard.claim(batch_id)
    for one in claims:
        await yard.commit(one, LARGE)
    return batch_id, last


def _early_processes() -> list[psutil.Process]:
    return below_this("dispatcher.early_server")


def _uploads(s3: S3, storage: Storage) -> set[str]:
    """The ids of what has been begun in S3."""
    found = minio_client(s3)._list_multipart_uploads(storage.bucket)  # noqa: SLF001  # the client shows them nowhere else
    return {upload.upload_id or "" for upload in found.uploads}


async def _is_completed(state: State, batch_id: str) -> bool:
    return (await state.batches.get(batch_id)).status is Status.COMPLETED
