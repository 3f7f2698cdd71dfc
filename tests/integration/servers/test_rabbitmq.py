import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aio_pika
import psutil
import pytest
from aio_pika.abc import AbstractChannel
from aiormq.exceptions import (
    AMQPConnectionError,
    AMQPError,
    ChannelAccessRefused,
    ChannelPreconditionFailed,
)

from cli.servers import RabbitMQ, User
from shared.bus import topology
from tests.eventually import eventually, wait_until
from tests.processes import below_this, variable
from tests.servers import UNBOUNDED

pytestmark = pytest.mark.usefixtures("needs_rabbitmq")

SERVICE = User("batchyard", "s/e:c@ret %1", tenant=False)
ACME = User("acme", "acme's password", tenant=True, bounds=UNBOUNDED)
GLOBEX = User("globex-2_x", "globex's password", tenant=True, bounds=UNBOUNDED)
QUORUM: dict[str, Any] = {"x-queue-type": "quorum"}

Action = Callable[[AbstractChannel], Awaitable[object]]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQ]:
    broker = RabbitMQ(tmp_path_factory.mktemp("rabbitmq"), [SERVICE, ACME, GLOBEX])
    broker.start()
    yield broker
    broker.kill()


def act(url: str, *actions: Action) -> list[object]:
    """Perform the actions on one channel of one login; the first error ends it."""

    async def connected() -> list[object]:
        async with await aio_pika.connect(url, timeout=10) as connection:
            channel = await connection.channel()
            return [await asyncio.wait_for(action(channel), 10) for action in actions]

    return asyncio.run(connected())


def publish(exchange: str, key: str, *, user_id: str | None = None, body: bytes = b"{}") -> Action:
    async def action(channel: AbstractChannel) -> object:
        message = aio_pika.Message(
            body, user_id=user_id, delivery_mode=aio_pika.DeliveryMode.PERSISTENT
        )
        if not exchange:
            return await channel.default_exchange.publish(message, key)
        target = await channel.get_exchange(exchange, ensure=False)
        return await target.publish(message, key, mandatory=exchange == topology.SUBMIT_EXCHANGE)

    return action


def declare(queue: str) -> Action:
    return lambda channel: channel.declare_queue(queue, durable=True, arguments=QUORUM)


def bind(queue: str, key: str, exchange: str = topology.EVENTS_EXCHANGE) -> Action:
    async def action(channel: AbstractChannel) -> object:
        return await (await channel.get_queue(queue, ensure=False)).bind(exchange, key)

    return action


def take(queue: str) -> Action:
    async def action(channel: AbstractChannel) -> object:
        message = await (await channel.get_queue(queue, ensure=False)).get(fail=False, no_ack=True)
        return None if message is None else message.body

    return action


def is_running(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_the_service_user_finds_the_whole_topology(broker: RabbitMQ) -> None:
    async def passive(channel: AbstractChannel) -> object:
        for name in topology.EXCHANGE_TYPES:
            await channel.get_exchange(name)
        for name, arguments in topology.QUEUE_ARGUMENTS.items():
            # Declared again with the same constants: a difference would be refused with 406.
            await channel.declare_queue(name, durable=True, arguments=dict(arguments))
        return True

    assert act(broker.url(SERVICE), passive) == [True]


def test_guest_is_refused(broker: RabbitMQ) -> None:
    port = urlsplit(broker.url(SERVICE)).port

    with pytest.raises(AMQPConnectionError):
        act(f"amqp://guest:guest@127.0.0.1:{port}/")


def test_a_wrong_password_is_refused(broker: RabbitMQ) -> None:
    with pytest.raises(AMQPConnectionError):
        act(broker.url(User("acme", "wrong", tenant=True)))


@pytest.mark.parametrize("tenant", [ACME, GLOBEX], ids=lambda tenant: tenant.name)
def test_a_tenant_submits_and_cancels_under_its_own_name(broker: RabbitMQ, tenant: User) -> None:
    act(
        broker.url(tenant),
        publish(topology.SUBMIT_EXCHANGE, topology.submit_key(tenant.name), user_id=tenant.name),
        publish(topology.SUBMIT_EXCHANGE, topology.cancel_key(tenant.name), user_id=tenant.name),
    )

    taken = act(broker.url(SERVICE), take(topology.SUBMIT_QUEUE), take(topology.SUBMIT_QUEUE))
    assert taken == [b"{}", b"{}"]


@pytest.mark.parametrize(
    "action",
    [
        publish(topology.SUBMIT_EXCHANGE, topology.submit_key(GLOBEX.name)),
        publish(topology.SUBMIT_EXCHANGE, topology.cancel_key(GLOBEX.name)),
        publish(topology.SUBMIT_EXCHANGE, "anything"),
        publish(topology.EVENTS_EXCHANGE, "batch.completed.acme.batch_1"),
        publish(topology.DEAD_EXCHANGE, topology.DEAD_KEY),
        publish("", topology.SUBMIT_QUEUE),
        publish("", f"sub.{GLOBEX.name}.x"),
        declare(f"sub.{GLOBEX.name}.x"),
        declare(f"reply.{GLOBEX.name}.x"),
        declare("anything"),
        take(topology.SUBMIT_QUEUE),
        take(topology.DEAD_QUEUE),
        lambda channel: channel.declare_exchange("sub.x", durable=True),
    ],
    ids=[
        "submit for another",
        "cancel for another",
        "wrong key",
        "forge an event",
        "write to the dead",
        "default exchange to the submit queue",
        "default exchange to another's queue",
        "declare another's subscription",
        "declare another's reply queue",
        "declare a queue of any name",
        "read submissions",
        "read the dead",
        "declare an exchange",
    ],
)
def test_a_tenant_is_refused(broker: RabbitMQ, action: Action) -> None:
    with pytest.raises(ChannelAccessRefused):
        act(broker.url(ACME), action)


def test_a_forged_user_id_is_refused(broker: RabbitMQ) -> None:
    forged = publish(topology.SUBMIT_EXCHANGE, topology.submit_key("acme"), user_id=GLOBEX.name)

    with pytest.raises(ChannelPreconditionFailed):
        act(broker.url(ACME), forged)


@pytest.mark.parametrize(
    "key",
    ["batch.*.acme.*", "batch.completed.acme.*", "batch.*.acme.batch_1", "batch.*.acme.#"],
)
def test_a_tenant_gets_its_own_events_and_no_others(broker: RabbitMQ, key: str) -> None:
    queue = "sub.acme.own"
    act(broker.url(ACME), declare(queue), bind(queue, key))

    for tenant in (ACME, GLOBEX):
        event = topology.event_key("batch.completed", tenant.name, "batch_1")
        act(broker.url(SERVICE), publish(topology.EVENTS_EXCHANGE, event, body=event.encode()))

    assert act(broker.url(ACME), take(queue), take(queue)) == [
        b"batch.completed.acme.batch_1",
        None,
    ]
    act(broker.url(ACME), lambda channel: channel.queue_delete(queue))


@pytest.mark.parametrize(
    ("exchange", "key"),
    [
        (topology.EVENTS_EXCHANGE, "#"),
        (topology.EVENTS_EXCHANGE, "batch.#"),
        (topology.EVENTS_EXCHANGE, "batch.*.*.*"),
        (topology.EVENTS_EXCHANGE, "batch.#.acme.*"),
        (topology.EVENTS_EXCHANGE, f"batch.*.{GLOBEX.name}.*"),
        (topology.EVENTS_EXCHANGE, f"batch.completed.{GLOBEX.name}.batch_1"),
        (topology.SUBMIT_EXCHANGE, "#"),
        (topology.SUBMIT_EXCHANGE, "submit.v1.acme"),
        (topology.DEAD_EXCHANGE, topology.DEAD_KEY),
    ],
)
def test_a_tenant_may_not_bind(broker: RabbitMQ, exchange: str, key: str) -> None:
    queue = "sub.acme.bound"

    with pytest.raises(ChannelAccessRefused):
        act(broker.url(ACME), declare(queue), bind(queue, key, exchange))


def test_a_rejected_submission_lies_in_the_dead_queue(broker: RabbitMQ) -> None:
    key = topology.submit_key("acme")
    act(broker.url(ACME), publish(topology.SUBMIT_EXCHANGE, key, body=b"dead"))

    async def reject(channel: AbstractChannel) -> object:
        queue = await channel.get_queue(topology.SUBMIT_QUEUE)
        await (await queue.get()).reject(requeue=False)
        return None

    async def wait_for_the_dead(channel: AbstractChannel) -> object:
        found: list[object] = []

        async def is_there() -> bool:
            found.append(await take(topology.DEAD_QUEUE)(channel))
            return found[-1] is not None

        await eventually(is_there)
        return found[-1]

    assert act(broker.url(SERVICE), reject, wait_for_the_dead)[-1] == b"dead"


def test_only_loopback_is_listened_on(
    broker: RabbitMQ, listening_addresses: Callable[[int], set[str]]
) -> None:
    assert broker.child.pid is not None
    assert listening_addresses(broker.child.pid) == {"127.0.0.1"}


def test_a_user_can_be_added_while_the_broker_runs(broker: RabbitMQ) -> None:
    late = User("late", "late's password", tenant=False)

    broker.ctl("add_user", late.name, standard_input=late.password)
    broker.ctl("set_permissions", late.name, "", "", "")

    assert act(broker.url(late)) == []
    broker.ctl("delete_user", late.name)
    with pytest.raises(AMQPError):
        act(broker.url(late))


def test_the_broker_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = (
        "import pathlib, sys, time\n"
        "from cli.servers import RabbitMQ\n"
        "RabbitMQ(pathlib.Path(sys.argv[1]), []).launch()\n"
        "time.sleep(1000)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)])
    pid_file = tmp_path / "rabbitmq.pid"
    wait_until(lambda: pid_file.exists() and bool(pid_file.read_text()))
    node = psutil.Process(int(pid_file.read_text()))
    wait_until(lambda: node.name() == "beam.smp")
    family = [node, *node.children(recursive=True)]

    parent.kill()
    parent.wait()

    wait_until(lambda: not any(is_running(member) for member in family))


def test_what_a_crash_leaves_lies_in_the_private_folder(broker: RabbitMQ) -> None:
    """Erlang writes it where this says, and else wherever the caller is."""
    node = psutil.Process(broker.child.pid)
    folder = Path(node.environ()["ERL_CRASH_DUMP"]).parent

    assert folder.name == "rabbitmq"
    assert folder.stat().st_mode & 0o077 == 0


# The last two take the broker of this file away from everybody for the length of a boot.
def test_a_broker_starts_no_epmd_that_outlives_it(broker: RabbitMQ) -> None:
    """It looks for one now and then, and would start one in a session of its own."""
    home = psutil.Process(broker.child.pid).environ()["HOME"]
    broker.ctl("eval", "timer:apply_after(4000, rabbit_nodes_common, ensure_epmd, []).")

    [epmd] = [one for one in below_this("epmd -port") if variable(one, "HOME") == home]
    epmd.kill()
    time.sleep(8)
    broker.kill()

    # What Erlang starts commands with has a session of its own, and ends when it notices.
    try:
        wait_until(
            lambda: not any(variable(one, "HOME") == home for one in psutil.process_iter()), 30
        )
    finally:
        broker.start()


def test_a_kill_keeps_what_was_confirmed_and_the_restart_has_the_same_address(
    broker: RabbitMQ,
) -> None:
    url = broker.url(SERVICE)
    bodies = [str(number).encode() for number in range(50)]
    act(url, *(publish(topology.SUBMIT_EXCHANGE, "submit.v1.acme", body=body) for body in bodies))

    broker.kill()
    broker.start()

    assert broker.url(SERVICE) == url
    assert act(url, *(take(topology.SUBMIT_QUEUE) for _ in bodies)) == bodies
