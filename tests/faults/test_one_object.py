"""S3 fails for some objects only: their messages are answered, and delay no others."""

import asyncio
import json
import os
import secrets
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from aio_pika.abc import AbstractIncomingMessage

from dispatcher import intake as intake_module
from dispatcher import planning
from dispatcher.finaliser import Finaliser
from dispatcher.inputs import Inputs
from dispatcher.intake import Intake
from dispatcher.lanes import LaneKeeper
from dispatcher.remaker import Remaker
from dispatcher.replay import Replay
from dispatcher.rounds import Rounds
from shared.bus import topology
from shared.bus.connection import Bus
from shared.bus.event_messages import EventMessages
from shared.catalog import Catalog
from shared.errors import TransientError
from shared.input_places import InputPlaces
from shared.ledger.commits import cancel
from shared.lifecycle import Status
from shared.monitoring.trail import Trail
from shared.state import State
from shared.storage import Storage
from shared.submission.admission import NewBatchQuota
from shared.tasks import end
from tests.batches import submitted, validating
from tests.conftest import a_bucket
from tests.eventually import eventually
from tests.faults.conftest import CATALOG, CHAT, submission
from tests.faults.s3_proxy import Refusal, S3Proxy, s3_proxy
from tests.integration.dispatcher.conftest import a_planner
from tests.integration.dispatcher.doors import an_adder
from tests.servers import S3

_BROKEN = Refusal(500, "UnknownError")
_UNAVAILABLE = Refusal(503, "ServiceUnavailable")
_IN_HAND = 16
#: More than are in hand at once.
_MANY = 3 * _IN_HAND


@pytest.fixture
def proxy(s3: S3) -> Iterator[S3Proxy]:
    with s3_proxy(s3.endpoint) as proxy:
        yield proxy


@pytest.fixture
async def straight(s3: S3) -> AsyncIterator[Storage]:
    """The bucket, past the proxy."""
    async with a_bucket(s3) as storage:
        yield storage


class Senders:
    """Tenants whose messages our own login sends, as it sends dead letters again."""

    def __init__(self, bus: Bus, state: State, straight: Storage) -> None:
        self._bus = bus
        self._state = state
        self._straight = straight
        self.deliveries: list[AbstractIncomingMessage] = []

    async def send(self, tenant: str, body: bytes) -> str:
        """Publish; returns the id of the message."""
        message_id = f"m-{secrets.token_hex(4)}"
        properties: dict[str, Any] = {
            "message_id": message_id,
            "type": "batch.submit.v1",
            "content_type": "application/json",
            "delivery_mode": 2,
            "reply_to": f"reply.{tenant}.mine",
        }
        await self._bus.publish(
            topology.SUBMIT_EXCHANGE,
            topology.submit_key(tenant),
            body,
            properties={"message_id": message_id, "user_id": self._bus.user},
            headers={"x-replay": {"user": tenant, "properties": properties}},
            mandatory=True,
        )
        return message_id

    async def send_object(self, tenant: str, name: str) -> str:
        """A message over an object of the tenant's own, which is there."""
        stored = await self._straight.put(f"inbox/{tenant}/{name}", b"{}\n")
        given: dict[str, Any] = {"kind": "s3", "bucket": self._straight.bucket, "key": stored.key}
        given |= {"etag": stored.etag, "size": stored.size}
        body = {"schema": "batch.submit/1", "endpoint": CHAT, "input": given}
        return await self.send(tenant, json.dumps(body).encode())

    async def answers(self) -> dict[str, Any]:
        """What was answered, by message id."""
        entries = await self._state.outbox.read("replies", limit=10_000, wait_seconds=0.001)
        return {
            entry.fields["correlation_id"]: json.loads(entry.fields["body"]) for entry in entries
        }

    async def until_answered(self, message_ids: list[str]) -> dict[str, Any]:
        async def are_answered() -> bool:
            return set(message_ids) <= (await self.answers()).keys()

        await eventually(are_answered, 120)
        return await self.answers()


@pytest.fixture
async def senders(
    bus: Bus, state: State, straight: Storage, proxy: S3Proxy, s3: S3
) -> AsyncIterator[Senders]:
    """The tenants, whom an intake behind the proxy serves."""
    keys = s3.access_key, s3.secret_key, straight.bucket
    storage = Storage(proxy.endpoint, *keys, attempts=1)
    lookups = Storage(proxy.endpoint, *keys, attempts=1, patience_seconds=60)
    senders = Senders(bus, state, straight)
    catalog = Catalog.model_validate(yaml.safe_load(CATALOG))
    quota = NewBatchQuota(catalog, 100_000, 1000, 1000)
    intake = Intake(
        state,
        storage,
        bus,
        service_user=bus.user,
        inputs=Inputs(
            state,
            lookups,
            places=InputPlaces(storage.bucket, "inbox/{tenant}/", {}),
            max_bytes=1_000_000,
            pauses=(0.05, 0.05),
        ),
        quota=quota,
        additions=an_adder(state, storage, catalog, quota),
        replay=Replay(state, bus, EventMessages(storage=storage)),
        trail=Trail(Path(os.devnull)),
    )

    async def take(message: AbstractIncomingMessage) -> None:
        senders.deliveries.append(message)
        await intake.take(message)

    await bus.consume(take, prefetch=_IN_HAND)
    yield senders
    proxy.judge = None
    storage.close()
    lookups.close()


async def test_an_object_that_s3_fails_for_alone_is_answered_and_the_others_are_taken(
    senders: Senders, proxy: S3Proxy
) -> None:
    proxy.judge = lambda _, path: _BROKEN if "broken" in path else None

    broken = [await senders.send_object("acme", f"broken-{n}") for n in range(_MANY)]
    good = [await senders.send_object("acme", "good"), await senders.send("globex", submission())]
    answers = await senders.until_answered([*broken, *good])

    assert {answers[one]["error"]["code"] for one in broken} == {"input_unavailable"}
    assert {answers[one]["status"] for one in good} == {"accepted"}


async def test_slow_objects_of_one_tenant_hold_up_no_other_tenant(
    senders: Senders, proxy: S3Proxy
) -> None:
    go_on = threading.Event()

    def judge(_: str, path: str) -> None:
        if "slow" in path:
            go_on.wait(60)

    proxy.judge = judge
    try:
        slow = [await senders.send_object("acme", f"slow-{n}") for n in range(_MANY)]
        await eventually(lambda: len(senders.deliveries) >= _IN_HAND)
        other = [await senders.send_object("globex", "in"), await senders.send("in", submission())]
        answers = await senders.until_answered(other)
        assert not answers.keys() & set(slow)
    finally:
        go_on.set()

    answers = await senders.until_answered(slow)
    assert {answers[one]["status"] for one in (*slow, *other)} == {"accepted"}


async def test_batches_that_end_over_slow_objects_of_two_tenants_hold_up_no_third(
    state: State, straight: Storage, proxy: S3Proxy, s3: S3
) -> None:
    catalog = Catalog.model_validate(yaml.safe_load(CATALOG))
    storage = Storage(proxy.endpoint, s3.access_key, s3.secret_key, straight.bucket)
    planner = a_planner(state, straight, catalog)
    body = {"model": next(iter(catalog.models)), "messages": [{"role": "user", "content": "x"}]}
    line = {"custom_id": "a", "method": "POST", "url": CHAT, "body": body}
    go_on = threading.Event()

    async def cancelled(tenant: str, name: str) -> str:
        """A batch that has not begun, of which each request gets its name from the input."""
        key = f"inbox/{tenant}/{name}"
        stored = await straight.put(key, json.dumps(line).encode())
        batch_id = await validating(
            state, tenant=tenant, key=key, etag=stored.etag, size=stored.size,
            bucket=straight.bucket,
        )  # fmt: skip
        await planner.plan(batch_id)
        assert (await state.batches.get(batch_id)).status is Status.IN_PROGRESS
        await cancel(state, straight, batch_id)
        return batch_id

    # Two that are slow together leave a slot to the third.
    slow = [await cancelled(one, f"slow-{n}") for one in ("acme", "initech") for n in range(10)]
    other = await cancelled("globex", "in")

    def judge(_: str, path: str) -> None:
        if "slow" in path:
            go_on.wait(60)

    proxy.judge = judge
    rounds = Rounds(
        state,
        planner=planner,
        finaliser=Finaliser(state, storage, output_seconds=60),
        remaker=Remaker(state, storage),
        lanes=LaneKeeper(
            state,
            storage,
            None,  # type: ignore[arg-type]  # no lane has work
            ready_rows=9,
            silence_seconds=9,
            attempts=9,
        ),
    )
    running = asyncio.create_task(rounds.run())

    async def has_ended(batch_id: str) -> bool:
        return (await state.batches.get(batch_id)).status is Status.CANCELLED

    try:
        await eventually(lambda: has_ended(other), 30)
        assert not any([await has_ended(batch_id) for batch_id in slow])
        go_on.set()
        for batch_id in slow:
            await eventually(partial(has_ended, batch_id), 60)
    finally:
        go_on.set()
        await end(running)
        storage.close()


@pytest.mark.parametrize("is_inline", [False, True])
async def test_in_an_outage_messages_wait_however_long_it_lasts(
    is_inline: bool,
    senders: Senders,
    proxy: S3Proxy,
    bus: Bus,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intake_module, "_PATIENCE_SECONDS", 0.01)
    proxy.judge = lambda *_: _UNAVAILABLE

    if is_inline:
        waiting = await senders.send("acme", submission())
    else:
        waiting = await senders.send_object("acme", "in")
    limit = int(topology.SUBMIT_QUEUE_ARGUMENTS["x-delivery-limit"])
    await eventually(lambda: len(senders.deliveries) > limit + 5, 120)
    assert waiting not in await senders.answers()
    proxy.judge = None

    answers = await senders.until_answered([waiting])
    assert answers[waiting]["status"] == "accepted"
    assert await bus.depth(topology.DEAD_QUEUE) == 0


async def test_a_batch_whose_input_s3_fails_for_alone_fails_and_in_an_outage_it_waits(
    state: State,
    straight: Storage,
    proxy: S3Proxy,
    s3: S3,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = Storage(proxy.endpoint, s3.access_key, s3.secret_key, straight.bucket, attempts=1)
    planner = a_planner(state, storage, Catalog.model_validate(yaml.safe_load(CATALOG)))
    batch_id = await submitted(state, straight, b"{}")

    async def status_after(refusal: Refusal, *, of_all: bool) -> Status:
        proxy.judge = lambda _, path: refusal if of_all or "files/" in path else None
        with suppress(TransientError):
            await planner.plan(batch_id)
        return (await state.batches.get(batch_id)).status

    assert await status_after(_BROKEN, of_all=False) is Status.VALIDATING
    monkeypatch.setattr(planning, "_UNANSWERED_SECONDS", 0.0)
    assert await status_after(_UNAVAILABLE, of_all=True) is Status.VALIDATING
    assert await status_after(_BROKEN, of_all=False) is Status.FAILED
    errors = json.loads((await state.batches.get(batch_id)).fields["errors"])
    assert [error["code"] for error in errors] == ["input_unavailable"]
    storage.close()
