"""Three RabbitMQ nodes with `pause_minority`, of which one and then two are lost."""

import asyncio
import json
import secrets
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import aio_pika
import pytest

from shared.bus import topology
from shared.bus.broker_errors import CONNECTION_ERRORS
from tests.eventually import eventually
from tests.faults.conftest import BrokerYard
from tests.faults.rabbitmq_cluster import Cluster
from tests.servers import SERVICE, TENANT

pytestmark = [
    pytest.mark.on_demand,
    # Three brokers start and start again.
    pytest.mark.timeout(1800),
    # aio-pika leaves connections half made whose broker dies, or whose client gives up.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

_SURE_SECONDS = 20.0


@pytest.fixture(scope="module")
def _mortal_rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """In the place of the one broker."""
    cluster = Cluster(tmp_path_factory.mktemp("cluster"), [SERVICE, TENANT])
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def rabbitmq(_mortal_rabbitmq: Cluster) -> Cluster:
    return _mortal_rabbitmq


@pytest.fixture
async def events(rabbitmq: Cluster) -> str:
    """A queue with every event, on all nodes."""
    name = f"sub.batchyard.{secrets.token_hex(4)}"
    async with await aio_pika.connect(rabbitmq.url(SERVICE)) as link:
        channel = await link.channel()
        arguments = {"x-queue-type": "quorum"}
        queue = await channel.declare_queue(name, durable=True, arguments=arguments)  # type: ignore[arg-type]  # aio-pika's is invariant
        await queue.bind(topology.EVENTS_EXCHANGE, "#")
    return name


async def test_one_node_may_be_lost_and_two_stop_the_bus_and_lose_nothing(
    yard: BrokerYard, rabbitmq: Cluster, events: str
) -> None:
    run = secrets.token_hex(4)
    made = [await _publish(yard, f"{run}.before"), await yard.create(f"{run}-before")]
    await yard.until_planned(made)

    # With one node lost, everything goes on.
    rabbitmq.lose(2)
    for number in range(5):
        made.append(await _publish(yard, f"{run}.one.{number}"))
        made.append(await yard.create(f"{run}-one-{number}"))
    await yard.until_planned(made)
    await yard.until_published()

    # The last node pauses: it confirms nothing that the others would not know of.
    rabbitmq.lose(1)
    await eventually(lambda: not rabbitmq.nodes[0].greets)
    over_http = [await yard.create(f"{run}-two-{number}") for number in range(5)]
    await yard.until_planned(over_http)
    assert not await yard.is_published()
    publishing = asyncio.create_task(_publish(yard, f"{run}.two"))
    done, _ = await asyncio.wait([publishing], timeout=_SURE_SECONDS)
    assert not done

    for number in (1, 2):
        rabbitmq.bring_back(number)
    await asyncio.to_thread(rabbitmq.wait)
    made += [*over_http, await publishing, await _publish(yard, f"{run}.afterwards")]

    assert len(set(made)) == len(made)
    await yard.until_planned(made)
    await yard.until_published()
    published = [json.loads(message.body) for message in await yard.taken(events)]
    first = {event["id"]: event for event in published}
    kinds = Counter((event["subject"], event["type"]) for event in first.values())
    expected = [(one, kind) for one in made for kind in ("batch.accepted", "batch.in_progress")]
    assert [event for event in expected if kinds[event] != 1] == []
    assert {event["subject"] for event in published} == set(made)


async def _publish(yard: BrokerYard, message_id: str) -> str:
    """As clients do: again and again, until it is confirmed."""
    while True:
        with suppress(*CONNECTION_ERRORS, OSError, TimeoutError):
            async with asyncio.timeout(30):
                return await yard.publish(message_id)
        sys.stderr.write("published again\n")
