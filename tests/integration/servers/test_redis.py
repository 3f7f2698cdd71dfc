import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from cli.servers import Ports, Redis
from shared.errors import SetupError
from shared.state import State
from shared.state.state import NAMESPACE
from shared.tenants import TenantSettings
from tests.batches import JOB, LANE, feed, in_progress

pytestmark = pytest.mark.usefixtures("needs_redis")

PASSWORD = "p@ss/word#1 with spaces"
LANE_PASSWORD = "another p@ss/word"
#: What a lane job has no business with, as commands.
FOREIGN = (
    ("HGETALL", f"{NAMESPACE}key:digest"),
    ("HGETALL", f"{NAMESPACE}webhook:we_1"),
    ("HGETALL", f"{NAMESPACE}file:file-1"),
    ("HSET", f"{NAMESPACE}plan:batch_1:p", "0", "x"),
    ("HSET", f"{NAMESPACE}weights", "acme", "99"),
    ("DEL", f"{NAMESPACE}batch:batch_1"),
    ("XRANGE", f"{NAMESPACE}outbox:events", "-", "+"),
    ("GET", "somebody-else"),
    ("KEYS", "*"),
    ("FLUSHALL",),
    ("CONFIG", "GET", "*"),
    ("CONFIG", "SET", "dir", "/tmp"),
    ("ACL", "LIST"),
    ("SHUTDOWN",),
    ("REPLICAOF", "127.0.0.1", "1"),
    ("SUBSCRIBE", "another"),
    ("EVAL", "return redis.call('FLUSHALL')", "0"),
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Redis]:
    server = Redis(tmp_path, PASSWORD, LANE_PASSWORD)
    server.start()
    yield server
    server.kill()


def test_the_url_lets_in(server: Redis) -> None:
    with redis.Redis.from_url(server.url) as client:
        assert client.ping()


def test_it_refuses_writes_before_it_fills_the_machine(server: Redis) -> None:
    with redis.Redis.from_url(server.url, decode_responses=True) as client:
        bound = int(client.config_get("maxmemory")["maxmemory"])
        policy = client.config_get("maxmemory-policy")["maxmemory-policy"]

    assert 1024**3 <= bound < psutil.virtual_memory().total
    assert policy == "noeviction"


@pytest.mark.parametrize("password", ["wrong", None])
def test_nobody_gets_in_without_the_password(
    server: Redis, tmp_path: Path, password: str | None
) -> None:
    port = Ports(tmp_path).get("redis")
    # The client's own choice would be to try again for seconds.
    once = Retry(NoBackoff(), 0)

    with (
        redis.Redis(port=port, password=password, retry=once) as stranger,
        pytest.raises(redis.AuthenticationError),
    ):
        stranger.ping()


@pytest.mark.parametrize("command", FOREIGN, ids=" ".join)
def test_a_lane_job_may_do_nothing_but_its_work(server: Redis, command: tuple[str, ...]) -> None:
    with (
        redis.Redis.from_url(server.lane_url) as lane_job,
        pytest.raises(redis.exceptions.NoPermissionError),
    ):
        lane_job.execute_command(*command)


def test_a_script_of_a_lane_job_reaches_no_further_than_its_commands(server: Redis) -> None:
    text = f"return redis.call('HGETALL', '{NAMESPACE}key:digest')"
    with redis.Redis.from_url(server.lane_url) as lane_job:
        lane_job.hset(f"{NAMESPACE}batch:batch_1", "status", "in_progress")
        digest = lane_job.script_load(text)

        with pytest.raises(redis.ResponseError, match="can't access at least one of the keys"):
            lane_job.evalsha(digest, 1, NAMESPACE)


def test_the_password_is_in_a_private_file_and_not_on_the_command_line(
    server: Redis, tmp_path: Path
) -> None:
    command = Path(f"/proc/{server.child.pid}/cmdline").read_bytes()

    assert PASSWORD.encode() not in command
    assert stat.S_IMODE((tmp_path / "redis" / "redis.conf").stat().st_mode) == 0o600


def test_a_kill_loses_nothing_that_was_answered(server: Redis) -> None:
    url = server.url
    with redis.Redis.from_url(url) as client:
        for number in range(100):
            client.set(f"key-{number}", number)

    server.kill()
    server.start()

    assert server.url == url
    with redis.Redis.from_url(url) as client:
        assert client.dbsize() == 100


def test_only_loopback_is_listened_on(
    server: Redis, listening_addresses: Callable[[int], set[str]]
) -> None:
    assert server.child.pid is not None
    assert listening_addresses(server.child.pid) == {"127.0.0.1"}


def test_a_start_that_fails_shows_the_end_of_the_log(tmp_path: Path) -> None:
    (tmp_path / "redis" / "appendonlydir").mkdir(parents=True)
    manifest = tmp_path / "redis" / "appendonlydir" / "appendonly.aof.manifest"
    manifest.write_text("nonsense\n")

    with pytest.raises(SetupError, match=r"(?s)redis ended with exit code 1 .*manifest"):
        Redis(tmp_path, PASSWORD).start()


@pytest.mark.parametrize("password", ["", 'a"b', "a\\b", "a\nb"])
def test_a_password_that_would_break_the_configuration_is_refused(
    tmp_path: Path, password: str
) -> None:
    with pytest.raises(SetupError, match="password"):
        Redis(tmp_path, password)


async def test_a_lane_job_may_read_what_is_set_for_tenants_and_count_their_engines_deaths(
    server: Redis,
) -> None:
    full, lane_job = State(server.url), State(server.lane_url)
    await full.tenants.put("acme", TenantSettings(engine_deaths_per_day=3))
    await full.lanes.set_weights({"acme": 2.0})
    batch_id = await in_progress(full, slices=1)
    await feed(full, batch_id, slices=1)
    await full.lanes.open_job(LANE, "", JOB)

    [claim] = await lane_job.claims.take(LANE, JOB, lease_seconds=30, slices=1, rows=99, begun=True)
    await lane_job.claims.release(claim, strikes=1, max_deaths=9, is_tenants_own=True)
    usage = await full.tenants.usage("acme", ())
    with pytest.raises(redis.exceptions.ResponseError, match=r"can.t access"):
        await lane_job.tenants.put("acme", TenantSettings())

    assert (claim.weight, claim.tenant_deaths, claim.tenant_death_limit) == (2.0, 0, 3)
    assert usage.engine_deaths == 1
    await full.close()
    await lane_job.close()
