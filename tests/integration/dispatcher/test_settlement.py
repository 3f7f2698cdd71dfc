from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractIncomingMessage

from dispatcher.burial import Burial
from dispatcher.delivery import Delivery
from dispatcher.settlement import VERBS, Outcome, Settlement
from shared.bus import dead_letters, topology
from shared.bus.connection import Bus
from tests.eventually import eventually
from tests.queues import next_message


class Handled:
    """What the consumer saw, and whether each delivery was settled."""

    def __init__(self, bus: Bus, outcomes: list[Outcome]) -> None:
        self._settlement = Settlement(bus, Burial(bus), service_user=bus.user)
        self._service_user = bus.user
        self._outcomes = outcomes
        self.deliveries: list[Delivery] = []
        self.settled: list[bool] = []

    async def take(self, message: AbstractIncomingMessage) -> None:
        delivery = Delivery(message, service_user=self._service_user)
        self.deliveries.append(delivery)
        outcome = self._outcomes.pop(0) if self._outcomes else Outcome.DONE
        self.settled.append(await self._settlement.settle(delivery, outcome, ZeroDivisionError()))


async def _handled(bus: Bus, *outcomes: Outcome, headers: Any = None) -> Handled:
    handled = Handled(bus, [*outcomes])
    await bus.publish(
        topology.SUBMIT_EXCHANGE,
        "submit.v1.acme",
        b"body",
        properties={"message_id": "m-1", "type": "batch.submit.v1", "user_id": bus.user},
        headers=headers,
    )
    await bus.consume(handled.take)
    return handled


def test_every_outcome_has_its_verbs() -> None:
    assert set(VERBS) == set(Outcome)
    assert all(VERBS.values())


async def test_what_is_done_is_acked(bus: Bus) -> None:
    handled = await _handled(bus, Outcome.DONE)

    await eventually(lambda: handled.settled == [True])
    assert await bus.depth(topology.SUBMIT_QUEUE) == await bus.depth(topology.DEAD_QUEUE) == 0


@pytest.mark.parametrize("outcome", [Outcome.CROWDED, Outcome.OUTAGE])
async def test_a_copy_at_the_end_of_the_queue_is_the_same_message_and_counts_anew(
    outcome: Outcome, bus: Bus
) -> None:
    headers = {"traceparent": "00-1"}
    sender = {"user": "globex", "properties": {"message_id": "m-2", "type": "batch.submit.v1"}}
    handled = await _handled(bus, outcome, headers={**headers, "x-replay": sender})

    await eventually(lambda: handled.settled == [True, True])
    first, again = handled.deliveries
    assert (again.envelope, again.body, again.count) == (first.envelope, first.body, 1)
    assert (again.envelope.user, dict(again.envelope.headers)) == ("globex", headers)


@pytest.mark.parametrize("outcome", [Outcome.SUSPECT_OUTAGE, Outcome.BROKEN])
async def test_what_may_kill_us_goes_back_and_is_counted(outcome: Outcome, bus: Bus) -> None:
    handled = await _handled(bus, *[outcome] * 3)

    await eventually(lambda: handled.settled == [True] * 4)
    assert [delivery.count for delivery in handled.deliveries] == [1, 2, 3, 4]
    assert [delivery.is_suspect for delivery in handled.deliveries] == [False] * 3 + [True]


async def test_what_breaks_for_good_is_a_dead_letter(bus: Bus, amqp_url: str) -> None:
    handled = await _handled(bus, Outcome.BROKEN_FOR_GOOD)

    async with await aio_pika.connect(amqp_url) as connection:
        queue = await (await connection.channel()).get_queue(topology.DEAD_QUEUE)
        message = await next_message(queue, 30)
    letter = dead_letters.read(message, service_user=bus.user)
    assert [reason.code for reason in letter.reasons] == ["internal_error"]
    assert handled.settled == [True]


async def test_a_message_that_cannot_be_copied_stays_in_hand_for_another_try(bus: Bus) -> None:
    headers = {"x-large": "x" * 8192}
    handled = await _handled(bus, Outcome.CROWDED, headers=headers)

    await eventually(lambda: handled.settled == [False])
    assert len(handled.deliveries) == 1
