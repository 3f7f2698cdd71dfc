"""`batchyard doctor` at real servers, each with a fault that was planted."""

import shlex
import time
from collections.abc import AsyncIterator
from pathlib import Path

import aio_pika
import pytest
from redis.asyncio import Redis
from typer.testing import CliRunner

from cli import servers
from cli.__main__ import app
from cli.doctor import rabbitmq as of_rabbitmq
from cli.doctor import ray as of_ray
from cli.doctor import redis as of_redis
from cli.doctor import s3 as of_s3
from cli.doctor.finding import Finding, Level
from cli.servers import free_port
from shared.bus import topology
from shared.bus.connection import Bus
from shared.engines import EngineRecord
from shared.errors import SetupError
from shared.state import State
from shared.storage import Storage
from tests.batches import validating
from tests.eventually import eventually
from tests.faults.s3_proxy import Refusal, s3_proxy
from tests.servers import S3, SERVICE


async def _bad(look: AsyncIterator[Finding]) -> dict[str, str]:
    """What failed or warns, and what to do."""
    found = [one async for one in look]
    assert found
    return {one.says: one.do for one in found if one.level in {Level.FAILED, Level.WARNING}}


async def test_a_redis_that_loses_batches_is_named_until_its_advice_is_followed(
    redis_server: servers.Redis, own_state: State
) -> None:
    async with Redis.from_url(redis_server.url) as redis:
        well = await _bad(of_redis.look(redis_server.url))
        await redis.config_set("appendfsync", "everysec")
        broken = await _bad(of_redis.look(redis_server.url))
        [advice] = broken.values()
        await redis.execute_command(*shlex.split(advice.partition("redis-cli ")[2]))
        mended = await _bad(of_redis.look(redis_server.url))
        batch_id = await validating(own_state)
        await redis.zadd("{batchyard}:status:validating", {batch_id: 1})
        stalled = await _bad(of_redis.look(redis_server.url))

    assert well == mended == {}
    assert [text.split(",")[0] for text in broken] == ["appendfsync is everysec"]
    assert any(text.startswith("batches are not planned since") for text in stalled)


async def test_a_redis_that_cannot_be_used_is_told_from_one_that_refuses_the_login(
    redis_server: servers.Redis,
) -> None:
    login, _, place = redis_server.url.rpartition("@")
    nobody = await _bad(of_redis.look(f"redis://127.0.0.1:{free_port()}"))
    stranger = await _bad(of_redis.look(f"{login}wrong@{place}"))

    assert list(nobody) == ["it does not answer (ConnectionError)"]
    assert list(stranger) == ["it refuses the login"]


async def test_s3_is_tried_out_and_nothing_is_left_behind(storage: Storage, s3: S3) -> None:
    found = [one async for one in of_s3.look(storage, s3.endpoint)]

    assert {one.level for one in found} == {Level.OK}
    assert "create-only puts are honoured" in {one.says for one in found}
    assert await storage.keys("probes/") == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"bucket": "nobodys-bucket"}, "there is no bucket 'nobodys-bucket'"),
        ({"secret_key": "wrong"}, "it refuses the login"),
        ({"endpoint": "http://127.0.0.1:9"}, "it does not answer at http://127.0.0.1:9"),
    ],
    ids=["bucket", "login", "address"],
)
async def test_what_is_wrong_with_s3_is_named(change: dict[str, str], says: str, s3: S3) -> None:
    place = {**s3._asdict(), "bucket": "any", **change}
    storage = Storage(**place, patience_seconds=5, attempts=1)
    bad = await _bad(of_s3.look(storage, place["endpoint"]))
    storage.close()

    assert [text for text in bad if text.startswith(says)] == list(bad)
    assert all(bad.values())


async def test_a_login_that_may_not_delete_is_told_which_right_it_lacks(
    storage: Storage, s3: S3
) -> None:
    with s3_proxy(s3.endpoint) as proxy:
        proxy.judge = lambda method, path: (
            Refusal(403, "AccessDenied") if method == "POST" and "delete" in path else None
        )
        tried = Storage(proxy.endpoint, *s3[1:], storage.bucket, patience_seconds=5, attempts=1)
        bad = await _bad(of_s3.look(tried, s3.endpoint))
        tried.close()

    assert [text.split(" fails")[0] for text in bad] == ["s3:DeleteObject"]


async def test_a_brokers_faults_are_named_until_their_advice_is_followed(
    rabbitmq: servers.RabbitMQ,
) -> None:
    url = rabbitmq.url(SERVICE)

    def policies() -> str:
        return rabbitmq.ctl("list_policies", "--formatter", "json")

    rabbitmq.ctl("clear_policy", "batch-dead-size")
    async with await aio_pika.connect(url) as connection, connection.channel() as channel:
        await channel.queue_delete(topology.DEAD_QUEUE)
    broken = await _bad(of_rabbitmq.look(url, policies))
    [policy] = [text for text in broken if "policy" in text]
    rabbitmq.ctl(*shlex.split(broken[policy])[1:])
    # As a dispatcher does at its start.
    bus = Bus(url)
    await bus.connect()
    await bus.close()
    mended = await _bad(of_rabbitmq.look(url, policies))

    assert policy.startswith("the policy 'batch-dead-size' is missing")
    assert f"the queue '{topology.DEAD_QUEUE}' is missing" in broken
    assert mended == {}


async def test_a_broker_that_takes_no_messages_and_a_queue_of_another_making_are_named(
    rabbitmq: servers.RabbitMQ,
) -> None:
    url = rabbitmq.url(SERVICE)
    async with await aio_pika.connect(url) as connection, connection.channel() as channel:
        await channel.queue_delete(topology.DEAD_QUEUE)
        await channel.declare_queue(topology.DEAD_QUEUE, durable=True)
        other = await _bad(of_rabbitmq.look(url, None))
        await channel.queue_delete(topology.DEAD_QUEUE)
    bus = Bus(url)
    await bus.connect()
    await bus.close()
    rabbitmq.ctl("set_vm_memory_high_watermark", "absolute", "1MB")
    try:
        # The broker looks at its memory every few seconds.
        await eventually(lambda: _says(url, ["it takes no messages"]))
    finally:
        rabbitmq.ctl("set_vm_memory_high_watermark", "absolute", "1GB")
    await eventually(lambda: _says(url, []))

    assert [text.split(":")[0] for text in other] == [
        f"the queue '{topology.DEAD_QUEUE}' has other arguments"
    ]


async def _says(url: str, wanted: list[str]) -> bool:
    return [text.split(":")[0] for text in await _bad(of_rabbitmq.look(url, None))] == wanted


async def test_a_broker_that_cannot_be_used_is_told_from_one_that_refuses_the_login(
    amqp_url: str,
) -> None:
    login, _, place = amqp_url.rpartition("@")
    nobody = await _bad(of_rabbitmq.look(f"amqp://127.0.0.1:{free_port()}", None))
    stranger = await _bad(of_rabbitmq.look(f"{login}wrong@{place}", None))

    assert [text.split(" (")[0] for text in nobody] == ["it does not answer"]
    assert list(stranger) == ["it refuses the login"]


async def test_engines_are_named_that_do_not_run_and_those_that_nobody_looks_at(
    own_state: State,
) -> None:
    now = time.time()
    engines = [
        EngineRecord(lane="a@l4", state="running", since=now, seen_at=now),
        EngineRecord(lane="b@l4", state="failed", since=now, seen_at=now, reason="No such model."),
        EngineRecord(lane="c@l4", state="waiting", since=now, seen_at=now, reason="No room."),
        EngineRecord(lane="d@l4", state="running", since=now, seen_at=now - 100),
    ]
    await own_state.engines.look(0, engines, [], day=0)

    found = [one async for one in of_ray.look_at_engines(own_state)]

    assert [(one.level, one.says) for one in found] == [
        (Level.OK, "a@l4 is running"),
        (Level.FAILED, "b@l4 is failed: No such model."),
        (Level.WARNING, "c@l4 is waiting: No room."),
        (Level.FAILED, "d@l4: nobody has looked at it for 100 s"),
    ]
    assert all(one.do for one in found[1:])


def test_a_folder_without_a_fleet_is_wrong_use(tmp_path: Path) -> None:
    ended = CliRunner().invoke(app, ["doctor", "--run-dir", str(tmp_path)], env={})

    assert isinstance(ended.exception, SetupError)
    assert ended.output.count("skipped ") == 6
    assert not list(tmp_path.iterdir())
