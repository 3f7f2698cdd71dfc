"""Calls in a time, new batches, and the queues of running batches, on a real Redis."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from redis.asyncio import Redis

from cli import servers
from shared.errors import InvalidTransitionError
from shared.lifecycle import FINAL, TRANSITIONS, Event, Status
from shared.state import (
    Admission,
    Exhausted,
    KnownBatch,
    LiveCallLimits,
    NewBatchParams,
    QueueFullError,
    Quota,
    Rate,
    RateStatus,
    State,
    Stream,
    TooManyCalls,
)
from tests.batches import new_slice, validating

HOUR = Rate("requests", 5, 3600)
ROOMY = Quota(requests=100, tokens=1000)


Held = Callable[[], Awaitable[tuple[int, int]]]


@pytest.fixture
def held(redis: "Redis[str]", namespace: str) -> Held:
    """What the running batches of `acme` hold: requests, and prompt tokens of `m`."""

    async def read() -> tuple[int, int]:
        fields = await redis.hgetall(f"{namespace}enqueued:acme")
        return int(fields.get("requests", 0)), int(fields.get("tokens:m", 0))

    return read


@pytest.fixture
async def key(state: State) -> str:
    return await state.keys.create("acme")


async def test_as_many_calls_are_let_in_as_the_limit_says(state: State, key: str) -> None:
    standings = [await _call(state, key, HOUR) for _ in range(7)]

    assert [rate_status.left for rate_status in standings] == [4, 3, 2, 1, 0, 0, 0]
    assert [rate_status.wait > 0 for rate_status in standings] == [False] * 5 + [True] * 2
    assert all(rate_status.wait <= 720_000_000 for rate_status in standings)
    resets = [rate_status.reset / 720e6 for rate_status in standings[:5]]
    assert [round(reset) for reset in resets] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("calls", [1, 3, 7, 10_000, 10**12])
async def test_of_many_calls_at_once_the_limit_are_let_in(
    calls: int, state: State, key: str
) -> None:
    rate = Rate("requests", calls, 3600)

    standings = await asyncio.gather(*(_call(state, key, rate) for _ in range(12)))

    assert sum(rate_status.wait == 0 for rate_status in standings) == min(12, calls)


async def test_room_comes_back_evenly(state: State, key: str) -> None:
    rate = Rate("requests", 3, 2)
    began, waits = time.monotonic(), []

    for _ in range(120):
        waits.append((await _call(state, key, rate)).wait)
        await asyncio.sleep(0.02)

    # Three at once, and one each two thirds of a second.
    assert 3 < waits.count(0) <= 3 + 1.5 * (time.monotonic() - began)
    assert max(waits) <= 667_000


async def test_a_tenants_keys_share_its_limits_and_other_tenants_have_theirs(
    state: State, key: str
) -> None:
    second, other = await state.keys.create("acme"), await state.keys.create("globex")

    await _call(state, key, HOUR)

    assert (await _call(state, second, HOUR)).left == 3
    assert (await _call(state, other, HOUR)).left == 4


async def test_the_tightest_of_several_limits_rules_and_a_refused_call_counts_for_none(
    state: State, key: str
) -> None:
    few = Rate("files", 2, 60)

    standings = [await _call(state, key, HOUR, few) for _ in range(4)]

    assert [rate_status.rate for rate_status in standings] == [few] * 4
    assert [rate_status.wait > 0 for rate_status in standings] == [False, False, True, True]
    assert (await _call(state, key, HOUR)).left == 2


async def test_a_call_that_is_let_in_costs_no_write_to_disk(redis_server: servers.Redis) -> None:
    async with _on(redis_server) as (state, redis):
        key = await state.keys.create("acme")
        await _call(state, key, HOUR)
        before = (await redis.info("persistence"))["aof_current_size"]

        standings = [await _call(state, key, HOUR) for _ in range(3)]

        assert standings[-1].left == 1
        assert (await redis.info("persistence"))["aof_current_size"] == before


async def test_a_live_call_whose_beginning_is_repeated_counts_once(state: State) -> None:
    """The client repeats a script whose answer was lost."""
    call, limits = Stream("acme", "a"), LiveCallLimits(calls=1, tokens_per_minute=100)
    rate = Rate("live", 2, 3600, "live_requests_per_minute")

    async def begin(call: Stream) -> RateStatus | TooManyCalls:
        return await state.live_calls.begin(
            call, tokens=60, limits=limits, seconds=60, requests=rate
        )

    answers = [await begin(call) for _ in range(3)]

    assert [isinstance(one, RateStatus) and one.wait for one in answers] == [0, 0, 0]
    assert [isinstance(one, RateStatus) and 40 <= one.left < 50 for one in answers] == [True] * 3
    assert await begin(Stream("acme", "b")) == TooManyCalls(limit=1, used=1)
    used = (await state.tenants.usage("acme", [rate])).calls
    assert used == {"live": 1}


async def test_new_batches_are_counted_and_known_ones_are_not(state: State) -> None:
    hour = Rate("batches", 2, 3600)
    known = await validating(state)

    for _ in range(5):
        assert await _reserve(state, known, rate=hour) == KnownBatch("print")
    assert await _reserve(state, "batch_1", rate=hour) is None
    assert await _reserve(state, "batch_2", rate=hour) is None
    refused = await _reserve(state, "batch_3", rate=hour)

    assert isinstance(refused, RateStatus)
    assert 0 < refused.wait <= 1_800_000_000
    assert (refused.rate, refused.left) == (hour, 0)


async def test_a_batch_that_would_find_its_queue_full_is_refused(state: State) -> None:
    await _start(state, rows=10, tokens=500, model="m")

    for requests, tokens, outcome in (
        (10, {"m": 1000}, Exhausted("requests", 10)),
        (11, {"m": 500}, Exhausted("tokens", 500)),
        (11, {"m": 500, "other": 500}, None),
        (11, {}, None),
    ):
        assert await _reserve(state, "batch_1", requests=requests, tokens=tokens) == outcome
    assert await _reserve(state, "batch_1", tenant="globex", requests=1) is None


@pytest.mark.parametrize(
    ("quota", "queue"),
    [
        (Quota(requests=30, tokens=1000), None),
        (Quota(requests=29, tokens=1000), "requests"),
        (Quota(requests=30, tokens=999), "tokens"),
        (Quota(requests=0, tokens=0), None),
    ],
)
async def test_a_batch_starts_only_with_room_for_all_of_it(
    quota: Quota, queue: str | None, state: State, held: Held
) -> None:
    await _start(state, rows=10, tokens=400, model="m")
    batch_id = await validating(state)

    if queue is None:
        assert await _accept(state, batch_id, rows=20, tokens=600, model="m", quota=quota)
        assert await held() == (30, 1000)
        return
    with pytest.raises(QueueFullError) as refused:
        await _accept(state, batch_id, rows=20, tokens=600, model="m", quota=quota)

    assert (refused.value.queue, refused.value.used) == (queue, {"requests": 10}.get(queue, 400))
    assert (await state.batches.get(batch_id)).status is Status.VALIDATING
    assert "plan" not in (await state.batches.get(batch_id)).fields
    assert await held() == (10, 400)


async def test_tokens_of_other_models_and_queues_of_other_tenants_do_not_count(
    state: State, held: Held
) -> None:
    await _start(state, rows=90, tokens=900, model="m", tenant="globex")
    await _start(state, rows=10, tokens=900, model="other")

    await _start(state, rows=90, tokens=1000, model="m")

    assert await held() == (100, 1000)


_ENDS = [
    Event.ROWS_FINISHED,
    Event.WINDOW_CLOSED,
    Event.CANCEL_REQUESTED,
    Event.LANE_FAILED,
    Event.INPUT_LOST,
]


def test_the_ends_are_all_ways_out_of_running() -> None:
    ways = {event for event, row in TRANSITIONS.items() if Status.IN_PROGRESS in row.sources}

    assert set(_ENDS) == ways


@pytest.mark.parametrize("event", _ENDS)
async def test_a_batch_that_runs_no_more_frees_its_share_at_once(
    event: Event, state: State, redis: Redis, namespace: str
) -> None:
    batch_id = await _start(state, rows=100, tokens=1000, model="m")
    with pytest.raises(QueueFullError):
        await _start(state, rows=1, tokens=1, model="m")

    await state.apply(batch_id, event)

    assert await redis.exists(f"{namespace}enqueued:acme") == 0
    await _start(state, rows=100, tokens=1000, model="m")


async def test_repeats_and_later_ends_free_nothing_twice(state: State, held: Held) -> None:
    kept = await _start(state, rows=40, tokens=400, model="m")
    batch_id = await _start(state, rows=60, tokens=600, model="m")
    assert not await _accept(state, batch_id, rows=60, tokens=600, model="m")
    assert await held() == (100, 1000)

    for event in (*_ENDS, Event.OUTPUT_COMMITTED, Event.CANCEL_COMMITTED, *_ENDS):
        try:
            await state.apply(batch_id, event)
        except InvalidTransitionError:
            continue

    assert (await state.batches.get(batch_id)).status in FINAL
    assert (await state.batches.get(kept)).status is Status.IN_PROGRESS
    assert await held() == (40, 400)


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    happenings=st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from([Event.INPUT_ACCEPTED, *Event])), max_size=25
    )
)
async def test_whatever_happens_the_queue_holds_what_runs(
    happenings: list[tuple[int, Event]], state: State, redis: "Redis[str]", namespace: str
) -> None:
    tenant = f"t{secrets.token_hex(4)}"
    made = [await validating(state, tenant=tenant) for _ in range(4)]

    for place, event in happenings:
        with suppress(InvalidTransitionError, QueueFullError):
            if event is Event.INPUT_ACCEPTED:
                await _accept(state, made[place], rows=10 * (place + 1), tokens=300, model="m")
            else:
                await state.apply(made[place], event)

    statuses = (await state.batches.statuses(made)).values()
    run = [place for place, status in enumerate(statuses) if status is Status.IN_PROGRESS]
    fields = await redis.hgetall(f"{namespace}enqueued:{tenant}")
    rows = sum(10 * (place + 1) for place in run)
    expected = {"requests": str(rows), "tokens:m": str(300 * len(run))} if run else {}
    assert fields == expected


async def test_of_many_batches_at_once_as_many_start_as_have_room(state: State, held: Held) -> None:
    made = [await validating(state) for _ in range(12)]

    outcomes = await asyncio.gather(
        *(_accept(state, one, rows=30, tokens=10, model="m") for one in made),
        return_exceptions=True,
    )

    assert [isinstance(outcome, QueueFullError) for outcome in outcomes].count(False) == 3
    assert await held() == (90, 30)


async def test_a_batch_that_failed_before_it_ran_held_nothing(state: State, held: Held) -> None:
    batch_id = await validating(state)

    await state.apply(batch_id, Event.INPUT_REJECTED)

    assert await held() == (0, 0)


async def _call(state: State, key: str, *rates: Rate) -> RateStatus:
    admission = await state.keys.admit(key, rates)
    assert isinstance(admission, Admission)
    return admission.rate_status


async def _reserve(
    state: State,
    batch_id: str,
    *,
    tenant: str = "acme",
    rate: Rate = HOUR,
    requests: int = 100,
    tokens: dict[str, int] | None = None,
) -> object:
    return await state.limits.reserve(
        NewBatchParams(tenant, batch_id, rate, requests, tokens or {})
    )


async def test_requests_for_several_answers_count_as_many_times(state: State) -> None:
    small = Quota(requests=10, tokens=0)
    first, second = await validating(state), await validating(state)
    await _accept(state, first, rows=1, tokens=5, model="m", quota=small, sequences=8)

    with pytest.raises(QueueFullError):
        await _accept(state, second, rows=1, tokens=5, model="m", quota=small, sequences=3)
    assert await _accept(state, second, rows=1, tokens=5, model="m", quota=small, sequences=2)


async def _start(state: State, *, rows: int, tokens: int, model: str, tenant: str = "acme") -> str:
    batch_id = await validating(state, tenant=tenant)
    await _accept(state, batch_id, rows=rows, tokens=tokens, model=model)
    return batch_id


async def _accept(
    state: State,
    batch_id: str,
    *,
    rows: int,
    tokens: int,
    model: str,
    quota: Quota = ROOMY,
    sequences: int | None = None,
) -> bool:
    await state.slices.plan(batch_id, "p", 0, [new_slice(0)])
    fields: dict[str, str | int] = {
        "plan": "p",
        "slices_total": 1,
        "total": rows,
        "lane": "m@gpu",
        "model": model,
        "queued_model": model,
        "prompt_tokens": tokens,
    }
    if sequences is not None:
        fields["queued_requests"] = sequences
    return await state.apply(batch_id, Event.INPUT_ACCEPTED, fields, quota=quota)


@asynccontextmanager
async def _on(server: servers.Redis) -> AsyncIterator[tuple[State, "Redis[str]"]]:
    state = State(server.url)
    redis: Redis[str] = Redis.from_url(server.url, decode_responses=True)
    yield state, redis
    await redis.aclose()
    await state.close()
