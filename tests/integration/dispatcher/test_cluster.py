import asyncio
import contextlib
import secrets
import time

import pytest

from cli.fleet.ray import RayNode
from cli.servers import free_port
from dispatcher.cluster import Cluster, JobStatus
from dispatcher.job_records import JobRecords
from shared.errors import TransientError
from tests.eventually import eventually

_FOREVER = 'python -c "import time; time.sleep(600)"'


async def test_a_job_runs_to_its_end(cluster: Cluster) -> None:
    job = _job()

    await cluster.submit(job, "python -c pass", metadata={"lane": "m@gpu"})

    await eventually(lambda: _is(cluster, job, JobStatus.SUCCEEDED))


async def test_a_job_that_fails_leaves_a_reason_of_a_few_lines(cluster: Cluster) -> None:
    job = _job()

    # Ray may look at the log before it has seen what was printed in the last moment.
    prints = "import time; print('.' * 9000); print('gone', flush=True); time.sleep(1)"
    await cluster.submit(job, f'python -c "{prints}; raise SystemExit(7)"', metadata={})

    await eventually(lambda: _is(cluster, job, JobStatus.FAILED))
    message = await cluster.message(job)
    assert "exit code 7" in message
    assert "gone" in message.split(), message
    assert len(message) < 1000


async def test_a_job_is_submitted_once_and_stopped(cluster: Cluster) -> None:
    job = _job()
    await cluster.submit(job, _FOREVER, metadata={})
    await eventually(lambda: _is(cluster, job, JobStatus.RUNNING))

    await cluster.submit(job, "python -c pass", metadata={})

    assert await cluster.status(job) is JobStatus.RUNNING
    await cluster.stop(job)
    await eventually(lambda: _is(cluster, job, JobStatus.STOPPED))
    # What is over may be stopped again, and is not begun again.
    await cluster.stop(job)
    await cluster.submit(job, _FOREVER, metadata={})
    assert await cluster.status(job) is JobStatus.STOPPED


async def test_records_of_lane_jobs_that_are_over_are_deleted_and_no_others(
    cluster: Cluster,
) -> None:
    over, running, foreign = _job(), _job(), _job()
    await cluster.submit(over, "true", metadata={"lane": "m@gpu"})
    await cluster.submit(running, _FOREVER, metadata={"lane": "m@gpu"})
    await cluster.submit(foreign, "true", metadata={})
    for job in (over, foreign):
        await eventually(lambda job=job: _is(cluster, job, JobStatus.SUCCEEDED))  # type: ignore[misc]  # bound now
    await eventually(lambda: _is(cluster, running, JobStatus.RUNNING))

    await JobRecords(cluster, kept_seconds=3600).forget()
    assert await cluster.status(over) is JobStatus.SUCCEEDED
    await JobRecords(cluster, kept_seconds=-1).forget()

    assert await cluster.status(over) is None
    assert await cluster.status(running) is JobStatus.RUNNING
    assert await cluster.status(foreign) is JobStatus.SUCCEEDED
    # It is no error if another dispatcher was faster.
    await cluster.forget(over)
    await cluster.stop(running)


async def test_a_job_that_was_never_submitted_is_unknown(cluster: Cluster) -> None:
    assert await cluster.status("lane-nobody") is None
    await cluster.stop("lane-nobody")
    assert "does not know" in await cluster.message("lane-nobody")


async def test_what_ray_refuses_is_transient_and_says_why(cluster: Cluster) -> None:
    with pytest.raises(TransientError, match=r"Ray did not take job .+: .+"):
        await cluster.submit("not/a job's id", "", metadata={})


@pytest.mark.parametrize("token", ["", secrets.token_hex(32)], ids=["none", "wrong"])
async def test_without_the_token_every_call_says_so(token: str, ray: RayNode) -> None:
    stranger = Cluster(ray.address, token)
    try:
        for call in (
            stranger.status("lane-x"),
            stranger.stop("lane-x"),
            stranger.message("lane-x"),
            stranger.submit("lane-x", "python -c pass", metadata={}),
        ):
            with pytest.raises(TransientError, match=r"40[13]: .*[Tt]oken"):
                await call
    finally:
        await stranger.close()


async def test_a_ray_that_is_not_there_is_transient_at_once() -> None:
    nowhere = Cluster(f"http://127.0.0.1:{free_port()}", "token")
    started = time.monotonic()

    with pytest.raises(TransientError, match="cannot be reached"):
        await nowhere.status("lane-x")

    assert time.monotonic() - started < 15
    await nowhere.close()


async def test_something_other_than_ray_is_transient() -> None:
    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello")
        await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        stranger = Cluster(address, "token")

        with pytest.raises(TransientError, match="not from Ray"):
            await stranger.status("lane-x")
        await stranger.close()


def _job() -> str:
    return f"lane-test-{secrets.token_hex(4)}"


async def _is(cluster: Cluster, job: str, status: JobStatus) -> bool:
    return await cluster.status(job) is status
