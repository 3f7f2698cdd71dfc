import asyncio
import json
import time
from typing import Any

import pytest
from redis.asyncio import Redis

from shared.errors import ConflictError, InvalidInputError, NotFoundError
from shared.lifecycle import FINAL, TRANSITIONS, Event, Status
from shared.openai.webhooks import WebhookAttempt
from shared.state import State
from shared.state.webhook_deliveries import Due, Outcome
from tests.batches import contents, happen, in_status
from tests.webhooks import Endpoint, an_endpoint

URL = "https://a.example/hook"
ENDS = [
    (event, source)
    for event, row in TRANSITIONS.items()
    if row.target in FINAL
    for source in sorted(row.sources)
]


@pytest.mark.parametrize(("event", "source"), ENDS)
async def test_every_way_to_an_end_writes_one_delivery_an_endpoint(
    event: Event, source: Status, state: State
) -> None:
    endpoints = [await an_endpoint(state, URL) for _ in range(2)]
    batch_id = await in_status(state, source)
    assert [await one.deliveries() for one in endpoints] == [[], []]

    for _ in range(2):
        await happen(state, batch_id, event)

    delivered = [await one.only() for one in endpoints]
    assert delivered[0].id != delivered[1].id
    for delivery in delivered:
        assert (delivery.event.type, delivery.event.data.id) == (
            f"batch.{TRANSITIONS[event].target}",
            batch_id,
        )
        assert (delivery.state, delivery.attempts) == ("pending", [])


async def test_a_concluded_batch_writes_its_delivery_with_its_files(state: State) -> None:
    endpoint = await an_endpoint(state, URL)
    batch_id = await in_status(state, Status.FINALIZING)

    await state.conclude(batch_id, Event.OUTPUT_COMMITTED, files=[], fields={"completed": 1})

    assert (await endpoint.only()).event.type == "batch.completed"


async def test_only_endpoints_that_want_the_event_get_a_delivery(state: State) -> None:
    others = await an_endpoint(state, URL, tenant="globex")
    failures = await an_endpoint(state, URL, event_types=("batch.failed", "batch.expired"))

    await in_status(state, Status.COMPLETED)
    await in_status(state, Status.FAILED)

    assert await others.deliveries() == []
    assert (await failures.only()).event.type == "batch.failed"


async def test_a_refused_event_makes_no_delivery(state: State) -> None:
    endpoint = await an_endpoint(state, URL)
    batch_id = await in_status(state, Status.COMPLETED)

    with pytest.raises(Exception, match="does not allow"):
        await state.apply(batch_id, Event.CANCEL_COMMITTED)

    assert len(await endpoint.deliveries()) == 1


async def test_a_delivery_is_claimed_by_one_of_many(state: State) -> None:
    await an_endpoint(state, URL)
    for _ in range(3):
        await in_status(state, Status.COMPLETED)

    claims = await asyncio.gather(*(_claim(state) for _ in range(8)))

    claimed = [due.id for found in claims for due in found]
    assert len(claimed) == len(set(claimed)) == 3


async def test_an_endpoint_has_no_more_claimed_than_it_may(state: State) -> None:
    await an_endpoint(state, URL)
    for _ in range(5):
        await in_status(state, Status.COMPLETED)

    first = await _claim(state, each=2)
    assert await _claim(state, each=2) == []
    await _settle(state, first[0], "delivered", each=2)

    assert len(first) == 2
    assert len(await _claim(state, each=2)) == 1


async def test_endpoints_take_turns_however_much_waits_for_one(state: State) -> None:
    busy = await an_endpoint(state, URL, event_types=("batch.completed",))
    for _ in range(4):
        await in_status(state, Status.COMPLETED)
    (first,) = await _claim(state, limit=1)
    other = await an_endpoint(state, URL, event_types=("batch.failed",))
    await in_status(state, Status.FAILED)
    await _settle(state, first, "delivered")

    # What became due later is second, not fifth.
    found = [(await _claim(state, limit=1))[0].endpoint for _ in range(3)]

    assert first.endpoint == busy.id
    assert other.id in found[:2]


async def test_one_that_asked_to_slow_down_gets_one_at_a_time_until_it_takes_one(
    state: State,
) -> None:
    await an_endpoint(state, URL)
    for _ in range(4):
        await in_status(state, Status.COMPLETED)
    first, *rest = await _claim(state, each=2)
    await _settle(state, first, "retry", pause=0.001, wait=60.0, each=2)
    await _settle(state, rest[0], "retry", each=2)

    (alone,) = await _claimed_soon(state, each=2)
    assert alone.slow == 1
    assert await _claim(state, each=2) == []
    await _settle(state, alone, "delivered", each=2)

    assert [due.slow for due in await _claim(state, each=2)] == [0, 0]


async def test_a_pause_holds_back_everything_for_the_endpoint(state: State) -> None:
    endpoint = await an_endpoint(state, URL)
    for _ in range(2):
        await in_status(state, Status.COMPLETED)
    (due,) = await _claim(state, limit=1)

    await _settle(state, due, "retry", pause=60.0)

    await in_status(state, Status.COMPLETED)
    assert await _claim(state) == []
    # Another URL is another receiver.
    await state.webhooks.update("acme", endpoint.id, {"url": "https://b.example"})
    assert {due.url for due in await _claim(state)} == {"https://b.example"}


@pytest.mark.parametrize("outcome", ["gone", "retry"])
async def test_what_a_former_receiver_answers_does_not_bind_the_new_one(
    outcome: Outcome, state: State
) -> None:
    endpoint = await an_endpoint(state, URL)
    await in_status(state, Status.COMPLETED)
    (under_way,) = await _claim(state)
    await state.webhooks.update("acme", endpoint.id, {"url": "https://b.example"})

    await _settle(state, under_way, outcome, pause=60.0)

    assert (await state.webhooks.get("acme", endpoint.id)).disabled_at is None
    (again,) = await _claimed_soon(state)
    assert (again.id, again.url, again.slow) == (under_way.id, "https://b.example", 0)


async def test_a_retry_waits_and_the_claim_says_for_how_long(state: State) -> None:
    endpoint = await an_endpoint(state, URL)
    await in_status(state, Status.COMPLETED)
    (due,) = await _claim(state)
    await _settle(state, due, "retry", wait=30.0)

    found, wait = await state.webhook_deliveries.claim(limit=10, per_endpoint=4, lease_seconds=30)

    assert found == []
    assert wait is not None
    assert 29 < wait <= 30
    delivery = await endpoint.only()
    assert abs((delivery.next_attempt_at or 0) - time.time() - 30) < 3


async def test_a_claim_that_ran_out_is_granted_again_and_fences_the_first(state: State) -> None:
    endpoint = await an_endpoint(state, URL)
    await in_status(state, Status.COMPLETED)
    (first,) = await _claim(state, lease=0.001)
    (second,) = await _claimed_soon(state)

    assert not await _settle(state, first, "delivered")
    assert await _settle(state, second, "retry", wait=60.0)

    assert second.id == first.id
    delivery = await endpoint.only()
    assert (delivery.state, len(delivery.attempts)) == ("pending", 1)


async def test_a_settled_claim_cannot_be_settled_again(state: State) -> None:
    endpoint = await an_endpoint(state, URL)
    await in_status(state, Status.COMPLETED)
    (due,) = await _claim(state)

    assert await _settle(state, due, "delivered")
    assert not await _settle(state, due, "failed")

    delivery = await endpoint.only()
    assert (delivery.state, len(delivery.attempts)) == ("delivered", 1)


async def test_a_deleted_endpoint_leaves_nothing_to_send(
    state: State, redis: "Redis[str]", namespace: str
) -> None:
    endpoint = await an_endpoint(state, URL)
    for _ in range(2):
        await in_status(state, Status.COMPLETED)
    (due,) = await _claim(state, limit=1)

    await state.webhooks.delete("acme", endpoint.id)

    assert not await _settle(state, due, "retry")
    assert await _claim(state) == []
    await in_status(state, Status.COMPLETED)
    left = await contents(redis, namespace)
    assert not [key for key in left if endpoint.id in key]
    assert endpoint.secret not in repr(left)
    # The deliveries end by themselves.
    for key in left:
        if "webhook" in key:
            assert await redis.ttl(key) > 0


async def test_all_that_is_kept_of_deliveries_ends_by_itself(
    state: State, redis: "Redis[str]", namespace: str
) -> None:
    await an_endpoint(state, URL)
    for _ in range(2):
        await in_status(state, Status.COMPLETED)
    first, second = await _claim(state)
    await _settle(state, first, "delivered")
    await _settle(state, second, "failed")

    lifetimes = {
        due.id: await redis.ttl(f"{namespace}webhook-delivery:{due.id}") for due in (first, second)
    }

    assert all(0 < seconds <= 7 * 86_400 for seconds in lifetimes.values())


async def test_pages_of_deliveries_skip_those_whose_time_is_over(
    state: State, redis: "Redis[str]", namespace: str
) -> None:
    endpoint = await an_endpoint(state, URL)
    for _ in range(7):
        await in_status(state, Status.COMPLETED)
    every = [one.id for one in await endpoint.deliveries()]
    await redis.delete(*(f"{namespace}webhook-delivery:{one}" for one in every[1:4]))

    found: list[str] = []
    after, has_more = None, True
    while has_more:
        page, has_more = await state.webhook_deliveries.page(
            "acme", endpoint.id, after=after, limit=2
        )
        found += [one.id for one in page]
        after = found[-1]

    assert found == [every[0], *every[4:]]
    assert await state.webhook_deliveries.page("acme", endpoint.id, after="wh_x", limit=2) == (
        [],
        False,
    )


async def test_a_tenant_has_no_more_endpoints_than_it_may(state: State) -> None:
    fields = {"name": "n", "url": URL, "event_types": "batch.failed", "secret": "s", "hint": "h"}
    for number in (1, 2, 2):
        await state.webhooks.create("acme", f"we_{number}", fields, max_endpoints=2)

    with pytest.raises(InvalidInputError, match="You have 2 webhook endpoints"):
        await state.webhooks.create("acme", "we_3", fields, max_endpoints=2)

    await state.webhooks.create("globex", "we_3", fields, max_endpoints=2)


async def test_a_change_is_noted_and_none_is_not(
    state: State, redis: "Redis[str]", namespace: str
) -> None:
    endpoint = await an_endpoint(state, URL)
    await redis.hset(f"{namespace}webhook:{endpoint.id}", "updated_at", "5")

    await state.webhooks.update("acme", endpoint.id, {"url": URL, "name": "n"})
    assert (await state.webhooks.get("acme", endpoint.id)).updated_at == 5
    await state.webhooks.update("acme", endpoint.id, {"name": "other"})

    record = await state.webhooks.get("acme", endpoint.id)
    assert record.updated_at > 5
    assert (record.name, record.url) == ("other", URL)


async def test_old_secrets_sign_for_a_day_and_no_longer(
    state: State, redis: "Redis[str]", namespace: str
) -> None:
    endpoint = await an_endpoint(state, URL)
    for secret in ("b", "b", "c"):
        await state.webhooks.rotate("acme", endpoint.id, secret=secret, hint="h", keep_old=True)
    assert await _secrets(state) == ("c", "b", endpoint.secret)

    key = f"{namespace}webhook:{endpoint.id}"
    kept = json.loads(str(await redis.hget(key, "old_secrets")))
    assert all(86_390 < until - time.time() <= 86_400 for _, until in kept)
    # As a day later.
    await redis.hset(key, "old_secrets", json.dumps([[text, 5] for text, _ in kept]))

    assert await _secrets(state) == ("c",)


async def test_no_record_shows_a_secret(state: State) -> None:
    endpoint = await an_endpoint(state, URL)

    record = await state.webhooks.get("acme", endpoint.id)

    assert endpoint.secret not in repr(record)
    assert record.hint == f"whsec_***{endpoint.secret[-4:]}"


async def test_one_that_is_being_sent_is_not_begun_anew(state: State) -> None:
    endpoint = await an_endpoint(state, URL)
    await in_status(state, Status.COMPLETED)
    (due,) = await _claim(state)

    await state.webhook_deliveries.redeliver("acme", endpoint.id, due.id)

    assert await _claim(state) == []
    assert await _settle(state, due, "delivered")


async def test_nothing_is_redelivered_to_a_disabled_endpoint(state: State) -> None:
    endpoint = await an_endpoint(state, URL)
    await in_status(state, Status.COMPLETED)
    (due,) = await _claim(state)
    await _settle(state, due, "gone")

    with pytest.raises(ConflictError, match="answered 410"):
        await state.webhook_deliveries.redeliver("acme", endpoint.id, due.id)


@pytest.mark.parametrize("call", ["get", "update", "rotate", "delete", "page", "redeliver"])
async def test_anothers_endpoint_is_not_found(call: str, state: State) -> None:
    endpoint = await an_endpoint(state, URL)
    await in_status(state, Status.COMPLETED)
    delivery = (await endpoint.only()).id
    arguments: dict[str, dict[str, Any]] = {
        "update": {"fields": {"name": "mine"}},
        "rotate": {"secret": "s", "hint": "h", "keep_old": False},
        "page": {"after": None, "limit": 2},
        "redeliver": {"delivery_id": delivery},
    }

    noun = state.webhook_deliveries if call in ("page", "redeliver") else state.webhooks

    with pytest.raises(NotFoundError):
        await getattr(noun, call)("globex", endpoint.id, **arguments.get(call, {}))

    assert (await state.webhooks.get("acme", endpoint.id)).name == "n"
    assert await _secrets(state) == (endpoint.secret,)


async def test_a_delivery_of_another_endpoint_is_not_found(state: State) -> None:
    first, second = [await an_endpoint(state, URL) for _ in range(2)]
    await in_status(state, Status.COMPLETED)
    foreign = (await second.only()).id

    for call in (state.webhook_deliveries.get, state.webhook_deliveries.redeliver):
        with pytest.raises(NotFoundError, match=foreign):
            await call("acme", first.id, foreign)


async def test_one_test_of_an_endpoint_at_a_time(state: State) -> None:
    endpoint: Endpoint = await an_endpoint(state, URL)

    assert await state.webhook_trials.start(endpoint.id, "wh_1", "batch.failed")
    assert await state.webhook_trials.start(endpoint.id, "wh_1", "batch.failed")
    assert not await state.webhook_trials.start(endpoint.id, "wh_2", "batch.failed")
    (trial,) = await state.webhook_trials.take(limit=9)
    assert (trial.id, trial.event.type, trial.url) == ("wh_1", "batch.failed", URL)
    await state.webhook_trials.finish(trial, _attempt(None))

    assert await state.webhook_trials.start(endpoint.id, "wh_1", "batch.failed")
    assert await state.webhook_trials.take(limit=9) == []
    assert await state.webhook_trials.start(endpoint.id, "wh_2", "batch.failed")


async def _claim(state: State, *, limit: int = 10, each: int = 4, lease: float = 30.0) -> list[Due]:
    found, _ = await state.webhook_deliveries.claim(
        limit=limit, per_endpoint=each, lease_seconds=lease
    )
    return found


async def _claimed_soon(state: State, *, each: int = 4) -> list[Due]:
    """What is claimed as soon as there is something."""
    while True:
        found, wait = await state.webhook_deliveries.claim(
            limit=10, per_endpoint=each, lease_seconds=30
        )
        if found:
            return found
        await asyncio.sleep(min(wait or 0.01, 0.01))


async def _settle(
    state: State,
    due: Due,
    outcome: Outcome,
    *,
    wait: float = 0.0,
    pause: float = 0.0,
    each: int = 4,
) -> bool:
    return await state.webhook_deliveries.settle(
        due, outcome, _attempt(500), wait_seconds=wait, pause_seconds=pause, per_endpoint=each
    )


def _attempt(status: int | None) -> WebhookAttempt:
    return WebhookAttempt(attempted_at=1, status_code=status, error=None)


async def _secrets(state: State) -> tuple[str, ...]:
    """What the next delivery to the only endpoint would be signed with."""
    await in_status(state, Status.COMPLETED)
    return (await _claim(state, limit=1))[0].secrets
