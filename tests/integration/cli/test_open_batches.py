"""Open batches behind the doors: deaths between the steps, a lost Redis, and what fsck finds."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from cli import servers
from cli.fsck.index import IndexCheck
from cli.fsck.objects import ObjectCheck
from cli.rebuild.rebuild import Rebuild
from dispatcher.finaliser import Finaliser
from dispatcher.lost_inputs import fail_lost_inputs
from dispatcher.windows import Windows
from shared.errors import BrokenObjectError, ConflictError, NotFoundError, TransientError
from shared.ledger.additions import addition_key, create_addition, read_addition
from shared.ledger.commits import cancel
from shared.ledger.copies import copies_prefix
from shared.ledger.plans import plan_key
from shared.state import State
from shared.state.state import NAMESPACE
from shared.storage import Storage
from shared.submission.additions import close, take
from tests.eventually import eventually
from tests.integration.cli.yards import TENANT, Yards, empty, yards_in
from tests.integration.dispatcher.conftest import (
    good,
    line,
    lines,
)


@pytest.fixture
def state(own_state: State) -> State:
    """On a Redis that the test may empty."""
    return own_state


@pytest.fixture
def yards(state: State, storage: Storage, tmp_path: Path) -> Yards:
    return yards_in(tmp_path, state, storage)


def named(*names: str, **body: Any) -> bytes:
    return b"".join(line(name, **body) + b"\n" for name in names)


async def written(yards: Yards, batch_id: str, *names: str) -> int:
    """An addition that is in S3 and not in Redis, as after a death between the two."""
    source = await yards.open("source")
    await yards.add(source, named(*names))
    addition, text = await read_addition(yards.storage, addition_key(source, 0))
    record = await yards.state.batches.get(batch_id)
    number, start = record.number("additions"), record.number("size")
    assert addition.start == start == 0, "only for a batch that has nothing yet"
    assert await create_addition(yards.storage, batch_id, addition, text)
    return number


async def rebuilt(yards: Yards) -> Rebuild:
    rebuild = Rebuild(yards.state, yards.storage, progress=lambda *_: None)
    await rebuild.run()
    return rebuild


async def ended(yards: Yards, batch_id: str) -> list[str]:
    """The names in the output of a batch, once all that it has is run."""
    await yards.yard.run(batch_id, lambda row: good(f"{row}"))
    await yards.yard.finaliser.finish(batch_id)
    record = await yards.record(batch_id)
    assert record["status"] == "completed"
    return [one["custom_id"] for one in await yards.yard.parsed(record["output_file_id"])]


async def test_after_a_death_before_redis_the_same_call_finds_its_rows(yards: Yards) -> None:
    batch_id = await yards.open("one")
    await written(yards, batch_id, "a", "b")

    again = await yards.add(batch_id, named("a", "b"))
    third = await yards.add(batch_id, named("a", "b"))
    await close(yards.state, yards.storage, batch_id)

    # The first answer that its sender gets.
    assert (again.added, again.repeated) == (2, 0)
    assert (third.added, third.repeated) == (0, 2)
    assert await ended(yards, batch_id) == ["a", "b"]


async def test_after_a_death_before_redis_another_call_comes_after_its_rows(yards: Yards) -> None:
    batch_id = await yards.open("one")
    await written(yards, batch_id, "a", "b")

    with pytest.raises(ConflictError, match="line 2"):
        await yards.add(batch_id, named("c") + named("b", temperature=1))
    await yards.add(batch_id, named("c"))
    await close(yards.state, yards.storage, batch_id)

    assert await ended(yards, batch_id) == ["a", "b", "c"]


async def test_after_a_death_before_redis_a_close_comes_after_its_rows(yards: Yards) -> None:
    batch_id = await yards.open("one")
    await written(yards, batch_id, "a", "b")

    await close(yards.state, yards.storage, batch_id)

    assert await ended(yards, batch_id) == ["a", "b"]


async def test_before_it_has_started_it_is_asked_again(yards: Yards) -> None:
    batch_id = await yards.open("one", is_started=False)

    with pytest.raises(TransientError):
        await yards.add(batch_id, named("a"))
    with pytest.raises(TransientError):
        await close(yards.state, yards.storage, batch_id)
    await yards.yard.planner.plan(batch_id)
    await yards.add(batch_id, named("a"))
    await close(yards.state, yards.storage, batch_id)

    assert await ended(yards, batch_id) == ["a"]


async def test_the_first_rows_of_a_lane_make_it_known(yards: Yards) -> None:
    batch_id = await yards.open("one")
    before = list(await yards.state.lanes.names())
    await yards.add(batch_id, named("a"))

    assert (before, list(await yards.state.lanes.names())) == ([], ["m@gpu"])


async def test_what_is_taken_twice_counts_once(yards: Yards) -> None:
    batch_id = await yards.open("one")
    await yards.add(batch_id, named("a", "b"))
    before = await yards.record(batch_id)

    addition = await read_addition(yards.storage, addition_key(batch_id, 0))
    await take(yards.state, batch_id, *addition)

    assert await yards.record(batch_id) == before


async def test_what_comes_too_early_is_not_taken(yards: Yards) -> None:
    batch_id, other = await yards.open("one"), await yards.open("other")
    for name in ("a", "b"):
        await yards.add(other, named(name))

    with pytest.raises(TransientError):
        await take(
            yards.state, batch_id, *await read_addition(yards.storage, addition_key(other, 1))
        )

    assert (await yards.record(batch_id))["total"] == "0"


async def test_many_processes_may_add_and_close_at_once(yards: Yards) -> None:
    batch_id = await yards.open("one")

    async def add(number: int) -> int:
        # Each with its own turns, as another process has.
        try:
            return (await yards.add(batch_id, named(f"own-{number}", "common"))).added
        except ConflictError:
            return 0

    async def has_rows() -> bool:
        return (await yards.record(batch_id))["total"] != "0"

    async def close_soon() -> None:
        await eventually(has_rows)
        await close(yards.state, yards.storage, batch_id)

    *counts, _ = await asyncio.gather(*map(add, range(12)), close_soon())
    names = await ended(yards, batch_id)

    # Whoever was told that its rows are in has them in the output, once.
    assert len(names) == len(set(names)) == sum(filter(None, counts))


async def test_two_rows_of_one_name_at_once_are_one_row(yards: Yards) -> None:
    batch_id = await yards.open("one")
    bodies = [named("a", temperature=number) for number in range(6)]

    outcomes = await asyncio.gather(
        *(yards.add(batch_id, body) for body in bodies), return_exceptions=True
    )
    await close(yards.state, yards.storage, batch_id)

    assert sum(not isinstance(one, BaseException) for one in outcomes) == 1
    assert sum(isinstance(one, ConflictError) for one in outcomes) == 5
    assert await ended(yards, batch_id) == ["a"]


Step = Callable[[Yards, str], Coroutine[Any, Any, None]]


async def _nothing(yards: Yards, batch_id: str) -> None:
    pass


async def _commit_one(yards: Yards, batch_id: str) -> None:
    await yards.commit_some(batch_id, 1)


async def _close(yards: Yards, batch_id: str) -> None:
    await yards.commit_some(batch_id, 1)
    await close(yards.state, yards.storage, batch_id)


async def _cancel(yards: Yards, batch_id: str) -> None:
    await cancel(yards.state, yards.storage, batch_id)


@pytest.mark.parametrize("step", [_nothing, _commit_one, _close, _cancel])
async def test_a_lost_redis_is_made_again_with_its_open_batches(
    step: Step, yards: Yards, redis_server: servers.Redis
) -> None:
    batch_id = await yards.open("one")
    await yards.add(batch_id, named("a", "b", "c", "d"))
    await yards.add(batch_id, named("e"))
    await step(yards, batch_id)
    before = await yards.record(batch_id)
    held = await yards.state.tenants.held([TENANT])
    slices = await yards.yard.slices(batch_id)
    await empty(redis_server)

    rebuild = await rebuilt(yards)

    assert rebuild.problems == []
    after = await yards.record(batch_id)
    passing = ("predicted", "cancelling_at", "in_progress_at")
    assert {**after, **dict.fromkeys(passing)} == {**before, **dict.fromkeys(passing)}
    assert await yards.state.tenants.held([TENANT]) == held
    assert await yards.yard.slices(batch_id) == slices
    if step is _cancel:
        return
    if step is not _close:
        assert (await yards.add(batch_id, named("e", "f"))).repeated == 1
        with pytest.raises(ConflictError):
            await yards.add(batch_id, named("a", temperature=1))
        await close(yards.state, yards.storage, batch_id)
    wanted = ["a", "b", "c", "d", "e"] + (["f"] if step is not _close else [])
    assert await ended(yards, batch_id) == wanted


async def test_what_is_added_after_a_rebuild_is_swept_when_its_batch_has_ended(
    yards: Yards, redis_server: servers.Redis
) -> None:
    batch_id = await yards.open("one")
    await empty(redis_server)

    await rebuilt(yards)
    await yards.add(batch_id, named("a"))
    await close(yards.state, yards.storage, batch_id)
    await ended(yards, batch_id)

    assert copies_prefix(batch_id) in await to_be_swept(redis_server)


async def to_be_swept(redis_server: servers.Redis) -> list[str]:
    """The prefixes and keys whose objects will be removed from S3 at some time."""
    redis: Redis[str] = Redis.from_url(redis_server.url, decode_responses=True)
    found = await redis.zrange(f"{NAMESPACE}garbage", 0, -1)
    await redis.aclose()
    return [str(one) for one in found]


async def test_a_rebuild_finds_rows_of_a_call_that_died_before_redis(
    yards: Yards, redis_server: servers.Redis
) -> None:
    batch_id = await yards.open("one")
    await written(yards, batch_id, "a", "b")
    await empty(redis_server)

    await rebuilt(yards)
    await close(yards.state, yards.storage, batch_id)

    assert await ended(yards, batch_id) == ["a", "b"]


async def test_without_its_plan_it_begins_again_with_all_that_it_was_given(
    yards: Yards, redis_server: servers.Redis
) -> None:
    batch_id = await yards.open("one")
    await yards.add(batch_id, named("a"))
    await yards.add(batch_id, named("b"))
    await yards.storage.remove([plan_key(batch_id)])
    await empty(redis_server)

    await rebuilt(yards)
    await yards.yard.planner.plan(batch_id)
    await close(yards.state, yards.storage, batch_id)

    assert await ended(yards, batch_id) == ["a", "b"]


@pytest.mark.parametrize("has_run", [True, False])
async def test_one_whose_window_ends_while_redis_is_lost_ends_as_any_other(
    has_run: bool, yards: Yards, redis_server: servers.Redis
) -> None:
    batch_id = await yards.open("one", expires_at=int(time.time()) - 1)
    await yards.add(batch_id, named("a", "b"))
    if has_run:
        await yards.yard.run(batch_id, lambda _: good())
    await empty(redis_server)
    await rebuilt(yards)

    await Windows(yards.state, yards.storage).close()

    async def is_closed() -> bool:
        return (await yards.record(batch_id))["status"] == "finalizing"

    await eventually(is_closed)
    await yards.yard.finaliser.finish(batch_id)
    # With all requests done, it is as if somebody had closed it in time.
    assert (await yards.record(batch_id))["status"] == ("completed" if has_run else "expired")


async def test_one_that_lost_rows_fails(yards: Yards, redis_server: servers.Redis) -> None:
    batch_id = await yards.open("one")
    for name in ("a", "b", "c"):
        await yards.add(batch_id, named(name))
    await yards.storage.remove([addition_key(batch_id, 1)])
    await empty(redis_server)

    rebuild = await rebuilt(yards)
    await fail_lost_inputs(yards.state, yards.storage, "m@gpu")

    assert [one.key for one in rebuild.damaged] == [addition_key(batch_id, 1)]
    assert (await yards.record(batch_id))["status"] == "failed"


async def test_fsck_misses_an_addition_and_sees_damage_to_one(yards: Yards) -> None:
    batch_id = await yards.open("one")
    await yards.add(batch_id, lines(3))
    await yards.add(batch_id, named("more"))
    index = IndexCheck(yards.state, yards.storage, reads_bodies=False)

    async def look(key: str) -> Any:
        try:
            return await yards.storage.stat(key)
        except NotFoundError:
            return None

    async def found() -> list[str]:
        subjects = [one async for one in index.subjects() if batch_id in one.ids]
        return [one.key for every in subjects for one in await index.check(*every, look)]

    async def damaged() -> list[str]:
        check = ObjectCheck(yards.state, yards.storage, reads_bodies=True)
        pages = [page async for page in yards.storage.pages(f"batches/{batch_id}/")]
        return [one.key for page in pages for one in await check.check(page)]

    assert (await found(), await damaged()) == ([], [])
    first, second = addition_key(batch_id, 0), addition_key(batch_id, 1)
    await yards.storage.remove([first])
    body = await yards.storage.get(second)
    await yards.storage.put(second, body.replace(b"more", b"less", 1))

    assert (await found(), await damaged()) == ([first], [second])
    with pytest.raises(BrokenObjectError):
        await read_addition(yards.storage, second)


async def test_its_input_is_the_same_for_every_finaliser(yards: Yards) -> None:
    batch_id = await yards.open("one")
    await yards.add(batch_id, named("a"))
    await yards.add(batch_id, named("b"))
    await close(yards.state, yards.storage, batch_id)
    await yards.yard.run(batch_id, lambda row: good(f"{row}"))
    record = await yards.state.batches.get(batch_id)

    finalisers = [Finaliser(yards.state, yards.storage, output_seconds=3600) for _ in range(3)]
    await asyncio.gather(*(one.finish(batch_id) for one in finalisers))

    file = await yards.state.files.get(TENANT, record.fields["input_file_id"])
    assert await yards.storage.get(file.key) == named("a", "b")
    ended_record = await yards.record(batch_id)
    assert (ended_record["etag"], ended_record["size"]) == (file.etag, str(file.bytes))
