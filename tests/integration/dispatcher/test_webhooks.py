"""The deliverer against real receivers on this machine."""

import time
from functools import partial

import pytest
from openai import InvalidWebhookSignatureError
from redis.asyncio import Redis

from cli import servers
from shared.lifecycle import FINAL, Event, Status
from shared.openai.webhooks import new_secret, secret_hint
from shared.state import State
from tests.batches import in_status, validating
from tests.eventually import eventually
from tests.receiver import Call, Reply, answers, receiving
from tests.webhooks import Endpoint, an_endpoint, delivering, let_claims_run_out


@pytest.mark.parametrize("status", sorted(FINAL))
async def test_each_end_of_a_batch_is_delivered_and_verified(status: Status, state: State) -> None:
    async with receiving() as receiver, delivering(state):
        endpoint = await an_endpoint(state, receiver.url)

        batch_id = await in_status(state, status)

        await eventually(lambda: endpoint.has("delivered"))
        (call,) = receiver.calls
        event = call.unwrapped(endpoint.secret)
        record = await state.batches.get(batch_id)
        assert (event.type, event.data.id) == (f"batch.{status}", batch_id)
        assert event.created_at == record.number(f"{status}_at")
        assert event.id == f"evt_{batch_id}_{record.number('sequence'):08d}"
        assert call.path == "/hook"
        assert call.headers["content-type"] == "application/json"
        assert call.headers["user-agent"].startswith("Batchyard/")
        assert call.headers["host"] == f"127.0.0.1:{receiver.port}"


async def test_what_is_not_taken_comes_again_as_it_was_with_a_time_of_its_own(
    state: State,
) -> None:
    async with receiving(answers(500, 404, 302, 200)) as receiver, delivering(state):
        endpoint = await an_endpoint(state, receiver.url)

        await in_status(state, Status.COMPLETED)

        await eventually(lambda: endpoint.has("delivered"))
        delivery = await endpoint.only()
    assert receiver.ids == [delivery.id] * 4
    assert delivery.id.startswith("wh_")
    assert len({call.body for call in receiver.calls}) == 1
    assert [one.status_code for one in delivery.attempts] == [500, 404, 302, 200]
    assert [one.error for one in delivery.attempts] == [None] * 4
    assert delivery.next_attempt_at is None
    for call, attempt in zip(receiver.calls, delivery.attempts, strict=True):
        assert call.unwrapped(endpoint.secret)
        assert int(call.headers["webhook-timestamp"]) == attempt.attempted_at


async def test_a_redirect_is_not_followed(state: State) -> None:
    async with receiving() as elsewhere:

        def redirect(_: Call) -> Reply:
            return 307, {"location": elsewhere.url}

        async with receiving(redirect) as receiver, delivering(state):
            await an_endpoint(state, receiver.url)

            await in_status(state, Status.FAILED)

            await eventually(lambda: len(receiver.calls) >= 3)
        assert elsewhere.calls == []


async def test_410_disables_an_endpoint_until_it_is_updated(state: State) -> None:
    async with receiving(answers(500, 410)) as receiver:
        endpoint = await an_endpoint(state, receiver.url)
        for _ in range(3):
            await in_status(state, Status.COMPLETED)

        async with delivering(state, each=1):
            await eventually(lambda: endpoint.has("failed", deliveries=3))
            assert len(receiver.calls) == 2
            assert (await state.webhooks.get("acme", endpoint.id)).disabled_at
            await in_status(state, Status.COMPLETED)
            assert len(await endpoint.deliveries()) == 3

            await state.webhooks.update("acme", endpoint.id, {})

            await in_status(state, Status.COMPLETED)
            await eventually(lambda: len(receiver.calls) == 3)
    assert (await state.webhooks.get("acme", endpoint.id)).disabled_at is None


async def test_both_secrets_sign_after_a_rotation_that_keeps_the_old_one(state: State) -> None:
    async with receiving() as receiver, delivering(state):
        endpoint = await an_endpoint(state, receiver.url)
        new = await _rotate(endpoint, keep_old=True)

        await in_status(state, Status.COMPLETED)

        await eventually(lambda: len(receiver.calls) == 1)
        assert receiver.calls[0].unwrapped(endpoint.secret)
        assert receiver.calls[0].unwrapped(new)

        newest = await _rotate(endpoint, keep_old=False)
        await in_status(state, Status.COMPLETED)

        await eventually(lambda: len(receiver.calls) == 2)
        assert receiver.calls[1].unwrapped(newest)
        for old in (endpoint.secret, new):
            with pytest.raises(InvalidWebhookSignatureError):
                receiver.calls[1].unwrapped(old)


async def test_a_slow_receiver_does_not_hold_up_another(state: State) -> None:
    async with receiving() as slow, receiving() as fast, delivering(state, each=2, attempts=8):
        slow.gate.clear()
        stuck = await an_endpoint(state, slow.url)
        await an_endpoint(state, fast.url, tenant="globex")
        for _ in range(10):
            await _cancelled(state, "acme")
        await eventually(lambda: len(slow.calls) == 2)

        for _ in range(10):
            await _cancelled(state, "globex")

        await eventually(lambda: len(fast.calls) == 10)
        assert len(slow.calls) == 2
        slow.gate.set()
        await eventually(lambda: stuck.has("delivered", deliveries=10))
    assert len(set(slow.ids)) == len(slow.ids) == 10


async def test_a_tenant_with_many_slow_receivers_leaves_attempts_to_others(state: State) -> None:
    async with receiving() as slow, receiving() as fast, delivering(state, each=4, attempts=8):
        slow.gate.clear()
        stuck = [await an_endpoint(state, slow.url) for _ in range(4)]
        await an_endpoint(state, fast.url, tenant="globex")
        for _ in range(4):
            await _cancelled(state, "acme")
        # Half of them: its endpoints could have twice as many as there are.
        await eventually(lambda: len(slow.calls) == 4)

        await _cancelled(state, "globex")

        await eventually(lambda: len(fast.calls) == 1)
        assert len(slow.calls) == 4
        slow.gate.set()
        for endpoint in stuck:
            await eventually(partial(endpoint.has, "delivered", deliveries=4))


@pytest.mark.parametrize("status", [429, 502, 504])
async def test_a_receiver_that_asks_to_slow_down_is_left_alone_as_long_as_it_says(
    status: int, state: State, redis: "Redis[str]", namespace: str
) -> None:
    async with receiving(lambda _: (status, {"retry-after": "120"})) as receiver:
        endpoint = await an_endpoint(state, receiver.url)
        for _ in range(3):
            await in_status(state, Status.COMPLETED)
        async with delivering(state, each=1):

            async def is_paused() -> bool:
                return any(one.attempts for one in await endpoint.deliveries())

            await eventually(is_paused)
            now = time.time()

            due_ms = await redis.zscore(f"{namespace}webhooks-due", endpoint.id)

            assert due_ms is not None
            assert 60 < due_ms / 1000 - now <= 120
            tried = next(one for one in await endpoint.deliveries() if one.attempts)
            assert 60 <= (tried.next_attempt_at or 0) - now <= 120
    assert len(receiver.calls) == 1


async def test_an_answer_that_does_not_come_in_time_is_none(state: State) -> None:
    async with receiving() as receiver, delivering(state, timeout_seconds=0.1):
        receiver.gate.clear()
        endpoint = await an_endpoint(state, receiver.url)

        await in_status(state, Status.COMPLETED)

        async def is_tried() -> bool:
            return bool((await endpoint.only()).attempts)

        await eventually(is_tried)
        attempt = (await endpoint.only()).attempts[0]
    assert attempt.status_code is None
    assert attempt.error == "no answer within 0.1 seconds"


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]"])
async def test_a_private_address_is_not_called_even_if_an_endpoint_has_it(
    host: str, state: State
) -> None:
    async with receiving() as receiver, delivering(state, networks=()):
        endpoint = await an_endpoint(state, f"http://{host}:{receiver.port}/")

        await in_status(state, Status.COMPLETED)

        async def is_tried() -> bool:
            return bool((await endpoint.only()).attempts)

        await eventually(is_tried)
        attempt = (await endpoint.only()).attempts[0]
    assert attempt.status_code is None
    assert "is not at a public address" in str(attempt.error)
    assert receiver.calls == []


async def test_a_delivery_that_was_sent_and_not_recorded_is_sent_again_under_its_id(
    state: State, redis_url: str, namespace: str
) -> None:
    async with receiving() as receiver:
        receiver.gate.clear()
        endpoint = await an_endpoint(state, receiver.url)
        await in_status(state, Status.COMPLETED)
        async with delivering(state):
            await eventually(lambda: len(receiver.calls) == 1)
        receiver.gate.set()

        # Its claim runs out.
        await let_claims_run_out(endpoint, redis_url, namespace)
        async with delivering(state):
            await eventually(lambda: endpoint.has("delivered"))

    assert receiver.ids == [(await endpoint.only()).id] * 2
    assert receiver.calls[0].body == receiver.calls[1].body


async def test_an_attempt_outlives_a_restart_of_redis(redis_server: servers.Redis) -> None:
    state = State(redis_server.url)
    try:
        async with receiving() as receiver, delivering(state):
            receiver.gate.clear()
            endpoint = await an_endpoint(state, receiver.url)
            await in_status(state, Status.COMPLETED)
            await eventually(lambda: len(receiver.calls) == 1)
            redis_server.kill()
            receiver.gate.set()
            await eventually(lambda: receiver.answered == 1)

            redis_server.launch()

            await eventually(lambda: endpoint.has("delivered"))
        assert len(receiver.calls) == 1
    finally:
        await state.close()


async def test_after_72_hours_a_delivery_has_failed_and_can_be_sent_once_more(
    state: State, redis: "Redis[str]", namespace: str
) -> None:
    async with receiving(answers(500)) as receiver:
        endpoint = await an_endpoint(state, receiver.url)
        await in_status(state, Status.COMPLETED)
        delivery_id = (await endpoint.only()).id
        key = f"{namespace}webhook-delivery:{delivery_id}"
        await redis.hincrby(key, "since_ms", -72 * 3600 * 1000)

        async with delivering(state):
            await eventually(lambda: endpoint.has("failed"))
            assert 0 < await redis.ttl(key) <= 7 * 86_400
            assert (await endpoint.only()).next_attempt_at is None

            await state.webhook_deliveries.redeliver("acme", endpoint.id, delivery_id)

            await eventually(lambda: endpoint.has("delivered"))
    assert receiver.ids == [delivery_id] * 2
    assert [one.status_code for one in (await endpoint.only()).attempts] == [500, 200]


async def test_what_was_delivered_can_be_delivered_again(state: State) -> None:
    async with receiving() as receiver, delivering(state):
        endpoint = await an_endpoint(state, receiver.url)
        await in_status(state, Status.COMPLETED)
        await eventually(lambda: endpoint.has("delivered"))

        await state.webhook_deliveries.redeliver("acme", endpoint.id, receiver.ids[0])

        await eventually(lambda: len(receiver.calls) == 2)
        await eventually(lambda: endpoint.has("delivered"))
    assert receiver.ids[0] == receiver.ids[1]


async def test_a_test_is_sent_to_a_disabled_endpoint_too_and_only_once(state: State) -> None:
    async with receiving(lambda _: 410) as receiver, delivering(state):
        endpoint = await an_endpoint(state, receiver.url)
        await in_status(state, Status.COMPLETED)
        await eventually(lambda: endpoint.has("failed"))

        assert await state.webhook_trials.start(endpoint.id, "wh_t", "batch.expired")

        async def is_answered() -> bool:
            return await state.webhook_trials.answer("wh_t") is not None

        await eventually(is_answered)
        answer = await state.webhook_trials.answer("wh_t")
        assert answer is not None
        assert answer.status_code == 410
        assert receiver.ids[1:] == ["wh_t"]
        assert receiver.calls[1].unwrapped(endpoint.secret).type == "batch.expired"
        assert len(await endpoint.deliveries()) == 1


async def _rotate(endpoint: Endpoint, *, keep_old: bool) -> str:
    secret = new_secret()
    await endpoint.state.webhooks.rotate(
        endpoint.tenant, endpoint.id, secret=secret, hint=secret_hint(secret), keep_old=keep_old
    )
    return secret


async def _cancelled(state: State, tenant: str) -> str:
    batch_id = await validating(state, tenant=tenant)
    await state.apply(batch_id, Event.CANCEL_REQUESTED)
    await state.apply(batch_id, Event.CANCEL_COMMITTED)
    return batch_id
