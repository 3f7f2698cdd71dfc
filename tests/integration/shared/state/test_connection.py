import asyncio
import socket
import time
from typing import Any

import pytest
import uvloop
from redis.asyncio import Redis

from cli import servers
from shared.errors import TransientError
from shared.lifecycle import Status
from shared.state import State
from tests.batches import LANE, validating
from tests.eventually import eventually


async def test_a_server_that_is_down_is_transient_within_seconds(
    own_state: State, redis_server: servers.Redis
) -> None:
    await own_state.ping()
    redis_server.kill()
    calls = [
        own_state.ping(),
        own_state.batches.get("batch_1"),
        own_state.batches.many(["batch_1"]),
        own_state.lease("a", "b", seconds=1).hold(),
        own_state.outbox.read("events", limit=1, wait_seconds=1),
        own_state.lanes.candidates(LANE, slices_per_batch=1),
    ]
    started = time.monotonic()

    errors = await asyncio.gather(*calls, return_exceptions=True)

    assert [type(error) for error in errors] == [TransientError] * len(calls)
    assert time.monotonic() - started < 30


def test_a_connection_that_was_reset_is_replaced_on_the_gateways_loop(redis_url: str) -> None:
    async def call_on_a_reset_connection() -> None:
        state = State(redis_url)
        await state.ping()
        [connection] = state._redis.connection_pool._available_connections  # noqa: SLF001  # as by a RST that nobody has read yet
        connection._writer.transport.abort()  # noqa: SLF001
        await state.ping()
        await state.close()

    uvloop.run(call_on_a_reset_connection())


async def test_what_was_accepted_survives_a_kill(
    own_state: State, redis_server: servers.Redis
) -> None:
    batch_id = await validating(own_state)

    redis_server.kill()
    redis_server.start()

    assert (await own_state.batches.get(batch_id)).status is Status.VALIDATING
    assert await own_state.outbox.length("events") == 1


async def test_a_call_waits_out_a_short_absence(
    own_state: State, redis_server: servers.Redis
) -> None:
    await own_state.ping()
    redis_server.kill()
    calling = asyncio.create_task(validating(own_state))
    await asyncio.sleep(0)

    redis_server.start()

    assert await calling
    assert await own_state.outbox.length("events") == 1


async def test_bells_say_that_the_server_is_down_and_ring_again_when_it_is_back(
    own_state: State, redis_server: servers.Redis
) -> None:
    async with own_state.bells("dispatcher") as bells:
        redis_server.kill()
        with pytest.raises(TransientError):
            await bells.wait(30)
        redis_server.start()

        async def rings() -> bool:
            await own_state.ring("dispatcher")
            return await bells.wait(0.1)

        await eventually(rings)


async def test_bells_of_a_server_that_is_down_are_transient(
    own_state: State, redis_server: servers.Redis
) -> None:
    redis_server.kill()

    with pytest.raises(TransientError):
        async with own_state.bells("dispatcher"):
            pass


async def test_a_full_memory_is_transient(own_state: State, redis_server: servers.Redis) -> None:
    admin: Redis = Redis.from_url(redis_server.url)
    await admin.config_set("maxmemory", 1)

    with pytest.raises(TransientError):
        await validating(own_state)
    await admin.config_set("maxmemory", 0)
    await admin.aclose()

    assert await validating(own_state)


async def test_scripts_are_loaded_again_when_the_server_forgot_them(
    own_state: State, redis_server: servers.Redis
) -> None:
    admin: Redis = Redis.from_url(redis_server.url)
    await validating(own_state)

    await admin.script_flush()
    await admin.aclose()

    assert await validating(own_state)


async def test_a_server_that_forgets_its_scripts_again_and_again_is_transient(
    own_state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = own_state._redis.script_load  # noqa: SLF001  # as by a server that dies between two calls

    async def load_and_forget(script: str) -> str:
        digest: str = await load(script)
        await own_state._redis.script_flush()  # noqa: SLF001
        return digest

    with monkeypatch.context() as patch:
        patch.setattr(own_state._redis, "script_load", load_and_forget)  # noqa: SLF001
        with pytest.raises(TransientError):
            await validating(own_state)

    assert await validating(own_state)


async def test_a_server_that_takes_no_writes_is_not_ready(
    own_state: State, redis_server: servers.Redis
) -> None:
    await own_state.ready()
    admin: Redis = Redis.from_url(redis_server.url)
    await admin.config_set("maxmemory", 1)
    await admin.aclose()

    await own_state.ping()
    with pytest.raises(TransientError):
        await own_state.ready()


async def test_rings_that_piled_up_are_heard_together(own_state: State) -> None:
    async with own_state.bells("dispatcher", "relay") as bells:
        for _ in range(5):
            await own_state.ring("dispatcher")
            await own_state.ring("relay")

        assert await bells.wait(5)
        heard = 1
        # The last of them may still have been on their way.
        while await bells.wait(0.1):
            heard += 1
        assert heard <= 3


async def test_a_bell_of_another_name_is_not_heard(own_state: State) -> None:
    async with own_state.bells("dispatcher") as bells:
        await own_state.ring("relay")

        assert not await bells.wait(0.1)


async def test_hundreds_of_calls_at_the_same_moment_are_answered(state: State) -> None:
    pings = await asyncio.gather(*(state.ping() for _ in range(300)), return_exceptions=True)

    assert set(pings) == {None}


async def test_a_call_that_was_given_up_does_not_come_later(state: State) -> None:
    """Nobody can hold up packets here; so this asks the kernel what it would do."""
    pool = state._redis.connection_pool  # noqa: SLF001  # nobody else has its sockets
    connection: Any = await pool.get_connection()
    try:
        own = connection._writer.get_extra_info("socket")  # noqa: SLF001  # as above
        milliseconds = own.getsockopt(socket.SOL_TCP, socket.TCP_USER_TIMEOUT)
        assert milliseconds == 1000 * connection.socket_timeout
    finally:
        await pool.release(connection)
