"""How fast a batch ran, as the scripts note it while it runs."""

from redis.asyncio import Redis

from shared.lifecycle import Event
from shared.retention import EVENT_HISTORY_SECONDS, MAX_PACE_MARKS, PROGRESS_MS
from shared.slices import Claim
from shared.state import State
from tests.batches import claim, feed, in_progress, part, validating


async def test_a_pace_begins_with_the_first_slice_and_ends_with_the_batch(
    state: State, redis: "Redis[str]", namespace: str
) -> None:
    batch_id = await in_progress(state, slices=2)
    await feed(state, batch_id)
    for one in await claim(state, slices=2):
        await state.claims.commit(one, part(one, failed=1))
    await state.apply(batch_id, Event.OUTPUT_COMMITTED)

    [marks] = await state.paces.of([batch_id])

    assert marks[0][1:] == (0, 0)
    assert marks[-1][1:] == (20, 100)
    assert marks == sorted(marks)
    assert 0 < await redis.ttl(f"{namespace}pace:{batch_id}") <= EVENT_HISTORY_SECONDS
    await state.batches.forget([batch_id])
    assert await state.paces.of([batch_id]) == [[]]


async def test_a_batch_that_has_not_begun_has_no_pace(state: State) -> None:
    batch_id = await validating(state)

    assert await state.paces.of([batch_id]) == [[]]


async def test_the_marks_of_a_long_batch_are_thinned_and_keep_its_beginning_and_its_last_ones(
    state: State, redis: "Redis[str]", namespace: str
) -> None:
    slices = MAX_PACE_MARKS + 50
    batch_id = await in_progress(state, slices=slices)
    await feed(state, batch_id, slices=slices)
    claims: list[Claim] = []
    while len(claims) < slices:
        claims += await claim(state, slices=100, rows=10_000)
    for one in claims[:-1]:
        # As if the last progress had been told a while ago.
        await redis.hincrby(f"{namespace}batch:{batch_id}", "progress_ms", -PROGRESS_MS)
        await state.claims.commit(one, part(one))

    [marks] = await state.paces.of([batch_id])
    [last] = await state.paces.of([batch_id], last=3)

    assert len(marks) <= MAX_PACE_MARKS
    assert marks[0].rows == 0
    assert last == marks[-3:]
    assert marks[-1].rows == 10 * (slices - 1)
    assert [mark.rows for mark in marks] == sorted(mark.rows for mark in marks)
