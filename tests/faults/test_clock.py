"""The clock of the gateway or the dispatcher is set by a minute: what was promised stays so.

Windows, leases and claims go by the clock of Redis, and pauses by each machine's uptime.
"""

import json
import secrets
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import aio_pika
import pytest

from shared import ids
from shared.bus import topology
from tests.clock import Clock
from tests.contract.processes import Process
from tests.eventually import eventually
from tests.faults.conftest import BrokerYard, submission, to_message
from tests.servers import TENANT

# Includes the start of the servers, on a busy machine.
pytestmark = pytest.mark.timeout(600)

_MINUTE = 60
#: Below the step of the clock, which would end it, and above what a busy machine lets wait.
_LEASE_SECONDS = "40"


@pytest.fixture(scope="module")
def clocks(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Clock]:
    return {room: Clock(tmp_path_factory.mktemp(room)) for room in ("gateway", "dispatcher")}


@pytest.fixture(scope="module")
def processes(
    environment: dict[str, str],
    clocks: Mapping[str, Clock],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[Process, Process]]:
    """Each with a clock of its own."""
    folder: Path = tmp_path_factory.mktemp("clock-logs")
    shared = environment | {"BATCHYARD_LEASE_SECONDS": _LEASE_SECONDS}
    both = [Process(room, shared | {**clock.environment}, folder)
            for room, clock in clocks.items()]  # fmt: skip
    try:
        for process in both:
            process.start()
        for process in both:
            process.wait()
        yield both[0], both[1]
    finally:
        for process in both:
            process.stop()


@pytest.mark.parametrize("room", ["gateway", "dispatcher"])
@pytest.mark.parametrize("seconds", [_MINUTE, -_MINUTE])
async def test_a_clock_that_is_set_loses_nothing_and_doubles_nothing(
    yard: BrokerYard, events: str, clocks: Mapping[str, Clock], room: str, seconds: int
) -> None:
    run = secrets.token_hex(4)
    made: list[str] = []

    async def more(name: str) -> None:
        for number in range(3):
            made.append(await yard.create(f"{run}-{name}-{number}"))
            made.append(await yard.publish(f"{run}.{name}.{number}"))

    await more("before")
    clocks[room].set(seconds)
    try:
        await more("meanwhile")
        assert await yard.create(f"{run}-before-0") == made[0]
        await yard.until_planned(made)
    finally:
        clocks[room].set(0)
    last = made[-2 if room == "gateway" else -1]
    created_at = (await yard.state.batches.get(last)).number("created_at")
    # The fault bites: who makes a batch says when, and nothing else depends on it.
    assert abs(created_at - time.time() - seconds) < _MINUTE / 2
    await more("afterwards")

    assert len(set(made)) == len(made)
    await yard.until_planned(made)
    await yard.until_published()
    published = [json.loads(message.body) for message in await yard.taken(events)]
    first = {event["id"]: event for event in published}
    kinds = Counter((event["subject"], event["type"]) for event in first.values())
    expected = [(one, kind) for one in made for kind in ("batch.accepted", "batch.in_progress")]
    assert [event for event in expected if kinds[event] != 1] == []
    assert {event["subject"] for event in published} == set(made)
    # Nobody else has taken over: leases do not go by this clock.
    assert yard.dispatcher.log().count('"dispatcher.leads"') == 1


@pytest.mark.parametrize("seconds", [_MINUTE, -_MINUTE])
async def test_a_window_ends_when_it_ends_whatever_the_dispatchers_clock_says(
    yard: BrokerYard, events: str, clocks: Mapping[str, Clock], seconds: int
) -> None:
    until = int(time.time()) + 15
    message_id = f"window-{secrets.token_hex(4)}"
    body = json.loads(submission()) | {"not_after": datetime.fromtimestamp(until, UTC).isoformat()}
    async with await aio_pika.connect(yard.rabbitmq.url(TENANT)) as link:
        exchange = await (await link.channel()).get_exchange(topology.SUBMIT_EXCHANGE, ensure=False)
        message = to_message(message_id, json.dumps(body).encode())
        await exchange.publish(message, topology.submit_key(TENANT.name))
    batch_id = ids.batch_id(TENANT.name, message_id)
    await yard.until_planned([batch_id])
    clocks["dispatcher"].set(seconds)
    try:

        async def has_expired() -> bool:
            return (await yard.state.batches.get(batch_id)).status == "expired"

        await eventually(has_expired)
        ended = time.time()
    finally:
        clocks["dispatcher"].set(0)

    assert until <= ended < until + _MINUTE / 2
