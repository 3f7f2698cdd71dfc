import asyncio
import time

from redis.asyncio import Redis

from cli import servers
from shared.lifecycle import Event, Status
from shared.slices import Claim
from shared.state import State
from shared.state.outbox import Entry
from tests.batches import claimed, in_progress, in_status, part, validating
from tests.eventually import eventually

_LONG_MS = 3_600_000


async def test_progress_is_in_no_outbox_and_only_the_newest_is_sent(
    state: State, redis: Redis, namespace: str
) -> None:
    got = await claimed(state, slices=10)
    await _send_all(state)
    for one in got[:9]:
        await state.claims.commit(one, part(one))
        await _age(redis, namespace, one)

    waiting = await state.outbox.length("events")
    [progress] = await state.events.take_progress(limit=9)

    assert waiting == 0
    assert progress.fields["type"] == "batch.progress"
    assert progress.snapshot()["completed"] == "90"
    assert await state.events.take_progress(limit=9) == []


async def test_the_first_commit_is_sent_at_once_and_the_next_ones_not_before_their_time(
    state: State, redis: Redis, namespace: str
) -> None:
    first, second, third, _ = await claimed(state, slices=4)
    await _send_all(state)
    await state.claims.commit(first, part(first))
    # As if it had been just now, however slow this machine is.
    await _age(redis, namespace, first, -_LONG_MS)
    await state.claims.commit(second, part(second))
    await state.claims.commit(third, part(third))

    [at_once] = await state.events.take_progress(limit=9)
    too_early = await state.events.take_progress(limit=9)
    await _age(redis, namespace, first, 2 * _LONG_MS)
    [late] = await state.events.take_progress(limit=9)

    assert (at_once.snapshot()["completed"], too_early) == ("10", [])
    assert late.snapshot()["completed"] == "30"
    assert int(late.fields["sequence"]) == int(at_once.fields["sequence"]) + 1


async def test_progress_waits_for_the_states_before_it_and_not_for_those_of_others(
    state: State, redis: Redis, namespace: str
) -> None:
    one, *_ = await claimed(state, slices=3)
    await state.claims.commit(one, part(one))
    seconds, micros = await redis.time()
    now_ms = seconds * 1000 + micros // 1000
    await eventually(lambda: _is_later(redis, now_ms))
    await validating(state)

    before = await state.events.take_progress(limit=9)
    entries = await state.outbox.read("events", limit=9, wait_seconds=0)
    await state.outbox.remove("events", [entry.id for entry in entries[:2]])
    after = await state.events.take_progress(limit=9)

    assert (before, len(entries)) == ([], 3)
    assert [entry.snapshot()["id"] for entry in after] == [one.batch_id]


async def test_a_change_of_state_takes_its_place(
    state: State, redis: Redis, namespace: str
) -> None:
    first, second, _ = await claimed(state, slices=3)
    await state.claims.commit(first, part(first))
    await _age(redis, namespace, first, -_LONG_MS)
    await state.claims.commit(second, part(second))
    await state.apply(first.batch_id, Event.CANCEL_REQUESTED)
    await _age(redis, namespace, first, 2 * _LONG_MS)
    last = (await _send_all(state))[-1]

    assert await state.events.take_progress(limit=9) == []
    assert last.snapshot()["completed"] == "20"
    # One number was progress's.
    assert last.fields["sequence"] == "4"


async def test_progress_is_taken_once_however_many_ask(state: State) -> None:
    batches = [(await claimed(state, slices=2))[0] for _ in range(5)]
    await _send_all(state)
    for one in batches:
        await state.claims.commit(one, part(one))

    taken = await asyncio.gather(*(state.events.take_progress(limit=2) for _ in range(20)))

    assert sorted(entry.snapshot()["id"] for some in taken for entry in some) == sorted(
        one.batch_id for one in batches
    )
    assert max(map(len, taken)) <= 2


async def test_progress_is_not_durable_and_its_number_is(redis_server: servers.Redis) -> None:
    state = State(redis_server.url)
    one, *_ = await claimed(state, slices=3)
    await _send_all(state)
    await state.claims.commit(one, part(one))

    redis_server.kill()
    redis_server.start()

    assert await state.events.take_progress(limit=9) == []
    assert (await state.batches.get(one.batch_id)).number("sequence") == 3
    await state.close()


async def test_the_history_has_every_change_of_state_as_it_was_sent(
    state: State, redis: Redis, namespace: str
) -> None:
    one, two = await claimed(state, slices=2)
    await state.claims.commit(one, part(one), announced=True)
    await state.controls.pause(one.batch_id)
    await state.claims.commit(two, part(two))
    await state.apply(one.batch_id, Event.OUTPUT_COMMITTED)
    sent = [entry for entry in await _send_all(state) if entry.fields["type"][:5] == "batch"]

    [history, nothing] = await state.events.history([one.batch_id, "batch_none"])

    assert [entry.fields for entry in history] == [entry.fields for entry in sent]
    assert [entry.fields["type"] for entry in history] == [
        "batch.accepted",
        "batch.in_progress",
        "batch.paused",
        "batch.finalizing",
        "batch.completed",
    ]
    assert nothing == []


async def test_a_history_stays_while_the_batch_lives_and_a_week_longer(
    state: State, redis: Redis, namespace: str
) -> None:
    live, ended = await in_progress(state), await in_status(state, Status.FAILED)
    await state.controls.amend(ended, metadata="{}")

    assert await redis.ttl(f"{namespace}events:{live}") == -1
    assert 604_700 < await redis.ttl(f"{namespace}events:{ended}") <= 604_800


async def test_of_a_history_the_last_hundred_are_kept(state: State) -> None:
    batch_id = await validating(state)
    for number in range(110):
        await state.controls.amend(batch_id, metadata=f'{{"n":"{number}"}}')

    [history] = await state.events.history([batch_id])

    assert [int(entry.fields["sequence"]) for entry in history] == list(range(12, 112))


async def test_changes_are_paged_by_time_and_none_is_skipped_while_batches_change(
    state: State,
) -> None:
    began = int(time.time() * 1_000_000) - 60_000_000
    first, second, third = [await validating(state) for _ in range(3)]
    await validating(state, tenant="globex")

    [one, two] = await state.events.changes("acme", after=began, limit=2)
    await state.controls.pause(first)
    rest = await state.events.changes("acme", after=two.at, limit=9)

    assert [one.batch_id, two.batch_id] == [first, second]
    assert [change.batch_id for change in rest] == [third, first]
    assert await state.events.changes("acme", after=rest[-1].at, limit=9) == []


async def test_no_two_batches_change_at_the_same_time(state: State) -> None:
    await asyncio.gather(*(validating(state) for _ in range(50)))

    times = [change.at for change in await state.events.changes("acme", after=0, limit=99)]

    assert times == sorted(set(times))
    assert len(times) == 50


async def _send_all(state: State) -> list[Entry]:
    """Empty the outbox, as a relay does; returns what was in it."""
    entries = await state.outbox.read("events", limit=999, wait_seconds=0)
    await state.outbox.remove("events", [entry.id for entry in entries])
    return entries


async def _age(redis: "Redis[str]", namespace: str, claim: Claim, by_ms: int = _LONG_MS) -> None:
    """Put the batch's last progress so much longer ago."""
    await redis.hincrby(f"{namespace}batch:{claim.batch_id}", "progress_ms", -by_ms)


async def _is_later(redis: "Redis[str]", than_ms: int) -> bool:
    seconds, micros = await redis.time()
    return bool(seconds * 1000 + micros // 1000 > than_ms)
