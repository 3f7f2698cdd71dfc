"""Redis is killed under load, and its log is cut anywhere: nothing that was answered is lost."""

import asyncio
import os
import random
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from redis.asyncio import Redis

from cli import servers
from shared.errors import TransientError
from shared.lifecycle import Event, Status
from shared.state import State
from shared.state.state import NAMESPACE
from tests.batches import accept_input, in_progress, validating
from tests.eventually import eventually

# A run on demand takes as long as it takes.
pytestmark = pytest.mark.timeout(3600)
_KILLS, _CUTS = int(os.environ.get("REDIS_KILLS", "200")), int(os.environ.get("REDIS_CUTS", "200"))
_WRITERS = 8


async def test_a_redis_killed_under_load_loses_no_transition_that_was_answered(
    own_state: State, redis_server: servers.Redis
) -> None:
    await _kill_again_and_again(own_state, redis_server, kills=3)


@pytest.mark.on_demand
async def test_a_redis_killed_hundreds_of_times_loses_no_transition_that_was_answered(
    own_state: State, redis_server: servers.Redis
) -> None:
    answered = await _kill_again_and_again(own_state, redis_server, kills=_KILLS)

    print(f"redis: {_KILLS} kills, {answered} transitions answered, 0 lost")  # noqa: T201


async def test_a_log_that_was_cut_anywhere_has_no_half_transition(
    own_state: State, redis_server: servers.Redis, tmp_path: Path
) -> None:
    await _cut_again_and_again(own_state, redis_server, tmp_path, cuts=3)


@pytest.mark.on_demand
async def test_a_log_that_was_cut_at_hundreds_of_places_has_no_half_transition(
    own_state: State, redis_server: servers.Redis, tmp_path: Path
) -> None:
    found = await _cut_again_and_again(own_state, redis_server, tmp_path, cuts=_CUTS)

    print(f"redis: log cut at {_CUTS} places, {found} batches whole")  # noqa: T201


async def _kill_again_and_again(state: State, server: servers.Redis, *, kills: int) -> int:
    """Returns how many transitions were answered."""
    answered: dict[str, Status] = {}
    enough = asyncio.Event()

    async def write() -> None:
        while not enough.is_set():
            # What has no answer may have happened or not.
            with suppress(TransientError):
                batch_id = await validating(state)
                answered[batch_id] = Status.VALIDATING
                await accept_input(state, batch_id)
                answered[batch_id] = Status.IN_PROGRESS
                await state.apply(batch_id, Event.CANCEL_REQUESTED)
                answered[batch_id] = Status.CANCELLING

    writers = [asyncio.create_task(write()) for _ in range(_WRITERS)]
    for _ in range(kills):
        goal = len(answered) + _WRITERS
        await eventually(lambda goal=goal: len(answered) >= goal, 60)  # type: ignore[misc]  # bound now
        server.kill()
        server.launch()
        await asyncio.to_thread(server.wait, 60)
    enough.set()
    await asyncio.gather(*writers)

    order = list(Status)
    found = await state.batches.statuses(list(answered))
    behind = [
        batch_id
        for batch_id, status in answered.items()
        if batch_id not in found or order.index(found[batch_id]) < order.index(status)
    ]
    assert behind == []
    # Of a batch there are one to three, by how far it came.
    ways = (Status.VALIDATING, Status.IN_PROGRESS, Status.CANCELLING)
    return sum(1 + ways.index(status) for status in answered.values())


async def _cut_again_and_again(
    state: State, server: servers.Redis, folder: Path, *, cuts: int
) -> int:
    """Returns how many batches were found, all cuts together."""
    made = [await in_progress(state) for _ in range(20)]
    for batch_id in made[::2]:
        await state.apply(batch_id, Event.CANCEL_REQUESTED)
    server.kill()
    log = _log_in(folder)
    whole, dice, found = log.read_bytes(), random.Random(7), 0
    for _ in range(cuts):
        log.write_bytes(whole[: dice.randrange(len(whole) // 4, len(whole))])
        server.launch()
        await asyncio.to_thread(server.wait, 60)
        found += await _whole_batches(server.url, made)
        server.kill()
    assert found
    return found


def _log_in(folder: Path) -> Path:
    return max(folder.rglob("*.incr.aof"), key=lambda path: path.stat().st_size)


async def _whole_batches(url: str, made: list[str]) -> int:
    """How many batches there are, the oldest without a gap, each with all that belongs to it."""
    redis: Redis[str] = Redis.from_url(url, decode_responses=True)
    try:
        keys = {key async for key in redis.scan_iter(match=f"{NAMESPACE}batch:*")}
        assert {key.rpartition(":")[2] for key in keys} == set(made[: len(keys)])
        published = Counter(
            entry["snapshot"].partition('"id":"')[2].partition('"')[0]
            for _, entry in await redis.xrange(f"{NAMESPACE}outbox:events")
        )
        for batch_id in made[: len(keys)]:
            record = await redis.hgetall(f"{NAMESPACE}batch:{batch_id}")
            events = await redis.llen(f"{NAMESPACE}events:{batch_id}")
            assert int(record["sequence"]) == events == published[batch_id]
            statuses = [
                status
                for status in Status
                if await redis.zscore(f"{NAMESPACE}status:{status}", batch_id) is not None
            ]
            assert statuses == [record["status"]]
        return len(keys)
    finally:
        await redis.aclose()
