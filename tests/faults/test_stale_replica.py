"""A replica of Redis is promoted although it lags behind: a rebuild brings back what it lacks."""

import asyncio
import json
import secrets
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from cli import servers
from cli.servers import free_port
from tests.eventually import eventually, wait_until
from tests.faults.conftest import BrokerYard
from tests.servers import absent
from tests.switch import Switch

# Includes the start of the servers, on a busy machine.
pytestmark = pytest.mark.timeout(600)

_ROOT = Path(__file__).parents[2]


class Pair:
    """A primary, its replica, and the address at which clients find the one that counts."""

    def __init__(self, folder: Path) -> None:
        password = secrets.token_urlsafe(16)
        self.primary, self.replica = (
            servers.Redis(folder / name, password, secrets.token_urlsafe(16))
            for name in ("primary", "replica")
        )
        self._switch = Switch([_port(self.primary.url)])
        self.url = f"redis://:{password}@127.0.0.1:{self._switch.port}/0"

    def start(self) -> None:
        """Return once the replica has everything."""
        for server in (self.primary, self.replica):
            server.start()
        with Redis.from_url(self.replica.url) as redis:
            redis.config_set("masterauth", self.url.partition("://:")[2].partition("@")[0])
            redis.replicaof("127.0.0.1", _port(self.primary.url))
        wait_until(lambda: self.lag == 0)

    def stop(self) -> None:
        self._switch.close()
        for server in (self.primary, self.replica):
            server.kill()

    @property
    def lag(self) -> int | None:
        """Bytes that the replica lacks; None while it has no link."""
        with Redis.from_url(self.replica.url) as one, Redis.from_url(self.primary.url) as other:
            behind, ahead = one.info("replication"), other.info("replication")
        if behind.get("master_link_status") != "up":
            return None
        return int(ahead["master_repl_offset"]) - int(behind["slave_repl_offset"])

    def cut(self) -> None:
        """Let the replica learn nothing more."""
        with Redis.from_url(self.replica.url) as redis:
            redis.replicaof("127.0.0.1", free_port())

    def promote(self) -> None:
        """Lose the primary, and take the replica for it."""
        self.primary.kill()
        with Redis.from_url(self.replica.url) as redis:
            redis.replicaof("NO", "ONE")
        self._switch.ports = [_port(self.replica.url)]


@pytest.fixture(scope="module")
def redis_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    if servers.missing(("redis",)):
        absent("Redis's program", "PATH")
    pair = Pair(tmp_path_factory.mktemp("pair"))
    try:
        pair.start()
        yield pair
    finally:
        pair.stop()


@pytest.fixture(scope="module")
def redis_url(redis_pair: Pair) -> str:
    """What the processes of this module have for Redis."""
    return redis_pair.url


async def test_a_replica_that_was_promoted_while_stale_is_made_whole_by_a_rebuild(
    yard: BrokerYard, redis_pair: Pair, events: str
) -> None:
    run = secrets.token_hex(4)
    old = [await yard.create(f"{run}-old-{number}") for number in range(6)]
    await yard.until_planned(old)
    await yard.until_published()
    wait_until(lambda: redis_pair.lag == 0)

    redis_pair.cut()
    lost = [await yard.create(f"{run}-lost-{number}") for number in range(6)]
    lost.append(await yard.publish(f"{run}.lost"))
    await yard.until_planned(lost)
    # Their ends are what the replica does not know.
    ended = [old[0], lost[0]]
    for batch_id in ended:
        await yard.http.post(f"/v1/batches/{batch_id}/cancel")
    await _until_all_are(yard, ended, "cancelled")
    await yard.until_published()
    redis_pair.promote()
    answer = await yard.http.get(f"/v1/batches/{lost[1]}")
    assert answer.status_code == 404
    rebuilt = await asyncio.to_thread(_rebuild, yard.environment)

    assert rebuilt.returncode == 0, rebuilt.stdout + rebuilt.stderr
    running = [one for one in old + lost if one not in ended]
    await yard.until_planned(running)
    await _until_all_are(yard, ended, "cancelled")
    # The same call with the same key is the same batch, and not another one.
    assert await yard.create(f"{run}-lost-3") == lost[3]
    assert await yard.publish(f"{run}.lost") == lost[-1]
    page = (await yard.http.get("/v1/batches", params={"limit": 100})).json()
    assert Counter(batch["id"] for batch in page["data"]) == Counter(old + lost)
    await yard.until_published()
    published = [json.loads(message.body) for message in await yard.taken(events)]
    first: dict[str, object] = {}
    for event in published:
        # No id says two things, before the promotion and after it.
        assert first.setdefault(event["id"], event) == event
    ends = [event for event in published if event["type"] == "batch.cancelled"]
    assert {event["subject"] for event in ends} == set(ended)


async def _until_all_are(yard: BrokerYard, batch_ids: list[str], status: str) -> None:
    async def are() -> bool:
        return set((await yard.state.batches.statuses(batch_ids)).values()) == {status}

    await eventually(are)


def _rebuild(environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """As an operator does."""
    return subprocess.run(
        [sys.executable, "-m", "cli", "rebuild"],
        env=environment,
        cwd=_ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def _port(url: str) -> int:
    return int(url.rpartition(":")[2].partition("/")[0])
