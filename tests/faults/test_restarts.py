"""The broker is restarted thirty times under load, in each of the three ways."""

import asyncio
import os
from collections.abc import Callable
from itertools import cycle, islice

import pytest

from cli import servers
from shared.bus.connection import Bus
from tests.eventually import eventually
from tests.faults.writers import taken_from, to_publish, writing
from tests.servers import SERVICE

pytestmark = [pytest.mark.on_demand, pytest.mark.timeout(3600)]
_RESTARTS = int(os.environ.get("BROKER_RESTARTS", "30"))

Restart = Callable[[servers.RabbitMQ], None]


def _kill(broker: servers.RabbitMQ) -> None:
    broker.kill()
    broker.launch()


def _terminate(broker: servers.RabbitMQ) -> None:
    broker.stop()
    broker.launch()


def _stop_app(broker: servers.RabbitMQ) -> None:
    broker.ctl("stop_app")
    broker.ctl("start_app")


async def test_a_broker_that_is_restarted_again_and_again_loses_nothing_confirmed(
    rabbitmq: servers.RabbitMQ,
) -> None:
    bus = Bus(rabbitmq.url(SERVICE))
    await bus.connect()
    taken = await taken_from(bus)
    ways: tuple[Restart, ...] = (_kill, _terminate, _stop_app)
    async with writing(to_publish(bus)) as confirmed:
        for restart in islice(cycle(ways), _RESTARTS):
            await confirmed.more()
            restart(rabbitmq)
            await asyncio.to_thread(rabbitmq.wait, 120)
            published = await confirmed.more()
            before = len(taken)
            await eventually(lambda before=before: len(taken) > before, 120)  # type: ignore[misc]  # bound now
            print(  # noqa: T201
                f"{restart.__name__}: publishes again {published:.1f} s after it serves, "
                f"{len(confirmed)} confirmed"
            )
    await eventually(lambda: confirmed <= taken, 120)
    await bus.close()
