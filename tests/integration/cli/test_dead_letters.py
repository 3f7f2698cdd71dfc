"""`batchyard dead-letters` on a real broker, over letters of both kinds."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aio_pika
import pytest
from aio_pika.abc import AbstractChannel
from typer.testing import CliRunner, Result

from cli import servers
from cli.__main__ import app
from cli.fleet.credentials import SERVICE_USER, TENANT
from cli.fleet.running import amqp_url, rabbitmq
from shared.bus import topology
from shared.bus.dead_letters import DEAD, REPLAY, dead_table, letter_id, replayed
from shared.bus.messages import Reason
from shared.errors import InvalidInputError, NotFoundError, SetupError
from tests.eventually import wait_until
from tests.integration.cli.conftest import act, publish, take

_SECRET = "the treasure lies under the old oak"
_KEY = f"submit.v1.{TENANT}"
_SENT = {
    "message_id": "m-1",
    "type": "batch.submit.v1",
    "content_type": "application/json",
    "correlation_id": "order-17",
    "reply_to": f"reply.{TENANT}.mine",
    "delivery_mode": 2,
}


@pytest.fixture
def service(broker_dir: Path, fleet_broker: servers.RabbitMQ) -> Iterator[str]:
    """The login of our own processes; both queues are empty."""
    url = amqp_url(broker_dir, None)
    act(url, _purge)
    yield url
    act(url, _purge)


def test_a_letter_of_the_dispatcher_says_why_and_where_and_stays(
    broker_dir: Path, service: str
) -> None:
    _bury(service, where="dispatcher/intake.py:9 in _submit")
    expected = letter_id(TENANT, _KEY, "m-1", _SECRET.encode())

    looks = [
        (_json("ls", run_dir=broker_dir)[0], _json("show", expected, run_dir=broker_dir))
        for _ in range(3)
    ]

    listed, shown = looks[-1]
    assert looks == [looks[0]] * 3
    assert listed["id"] == shown["id"] == expected
    assert shown["user"] == TENANT
    assert shown["by"] == "dispatcher"
    assert shown["at"] == 1_795_165_000
    assert shown["where"] == "dispatcher/intake.py:9 in _submit"
    assert shown["reasons"] == [
        {"code": "schema_invalid", "message": "priority: too high", "param": "priority"},
        {"code": "expired", "message": "not_after: over", "param": None},
    ]
    assert shown["reason_count"] == 2
    assert shown["properties"] == _SENT
    assert shown["headers"] == {"x-schema": "batch.submit/1"}
    assert (shown["routing_key"], shown["size"]) == (_KEY, len(_SECRET))
    wait_until(lambda: _count(service) == 1, 30)


def test_a_letter_of_the_broker_is_read_by_the_same_command(broker_dir: Path, service: str) -> None:
    _die_at_the_limit(service)

    [letter] = _json("ls", run_dir=broker_dir)

    assert letter["by"] == "broker"
    assert letter["user"] == SERVICE_USER
    assert letter["routing_key"] == "submit.v1.x"
    assert letter["reasons"][0]["code"] == "delivery_limit"
    assert letter["properties"]["message_id"] == "m-limit"
    assert abs(letter["at"] - time.time()) < 3600


@pytest.mark.parametrize("arguments", [["ls"], ["ls", "--json"], ["show", "ID"]])
def test_no_body_is_shown_unasked(arguments: list[str], broker_dir: Path, service: str) -> None:
    _bury(service)
    wanted = letter_id(TENANT, _KEY, "m-1", _SECRET.encode())
    command = [wanted if word == "ID" else word for word in arguments]

    assert _SECRET not in _run(*command, run_dir=broker_dir).output
    assert _json("show", wanted, "--body", run_dir=broker_dir)["body"] == _SECRET


def test_a_body_that_is_no_text_is_shown_as_base64(broker_dir: Path, service: str) -> None:
    _bury(service, body=b"\x00\xff")

    [letter] = _json("ls", run_dir=broker_dir)

    assert _json("show", letter["id"], "--body", run_dir=broker_dir)["body"] == "base64:AP8="


def test_a_replay_is_the_original_message_and_its_sender(broker_dir: Path, service: str) -> None:
    _bury(service)
    [letter] = _json("ls", run_dir=broker_dir)

    assert _json("replay", letter["id"], run_dir=broker_dir) == {"replayed": [letter["id"]]}
    [*_, told] = map(json.loads, (broker_dir / "trail.jsonl").read_text().splitlines())
    assert (told["act"], told["object"], told["tenant"]) == (
        "dead_letter.replayed",
        letter["id"],
        TENANT,
    )

    [message] = act(service, take(topology.SUBMIT_QUEUE))
    user, properties, headers = replayed(message.headers)
    assert message.body == _SECRET.encode()
    assert message.routing_key == _KEY
    # The broker has checked that it is us who say whose it is.
    assert message.user_id == SERVICE_USER
    assert (user, properties) == (TENANT, _SENT)
    assert headers.keys() - {"x-delivery-count"} == {"x-schema"}
    wait_until(lambda: _count(service) == 0, 30)


def test_a_replay_of_a_letter_of_the_broker_begins_anew(broker_dir: Path, service: str) -> None:
    _die_at_the_limit(service)

    _run("replay", "--all", run_dir=broker_dir)

    [message] = act(service, take(topology.SUBMIT_QUEUE))
    assert (message.message_id, message.routing_key) == ("m-limit", "submit.v1.x")
    assert "x-death" not in message.headers
    assert message.headers[REPLAY]["user"] == SERVICE_USER
    wait_until(lambda: _count(service) == 0, 30)


def test_a_replay_that_the_broker_does_not_take_stays_a_dead_letter(
    broker_dir: Path, service: str
) -> None:
    _bury(service)

    policy = '{"max-length":0}'
    broker = rabbitmq(broker_dir)
    broker.ctl("set_policy", "--priority", "9", "full", "^batch.submit.v1$", policy)
    try:
        wait_until(lambda: _is_refused(service), 30)
        with pytest.raises(SetupError, match="still among the dead letters"):
            _run("replay", "--all", run_dir=broker_dir)
    finally:
        broker.ctl("clear_policy", "full")

    wait_until(lambda: _count(service) == 1, 30)


def test_letters_are_dropped_by_id_and_all_together(broker_dir: Path, service: str) -> None:
    for number in range(3):
        _bury(service, message_id=f"m-{number}")
    first = letter_id(TENANT, _KEY, "m-0", _SECRET.encode())

    one = _json("drop", first, "--yes", run_dir=broker_dir)
    left = [letter["properties"]["message_id"] for letter in _json("ls", run_dir=broker_dir)]
    rest = _json("drop", "--all", "--yes", run_dir=broker_dir)

    assert one == {"dropped": [first]}
    assert left == ["m-1", "m-2"]
    assert len(rest["dropped"]) == 2
    wait_until(lambda: _count(service) == 0, 30)


def test_nothing_is_dropped_unless_somebody_says_yes(broker_dir: Path, service: str) -> None:
    _bury(service)

    refused = CliRunner().invoke(
        app, ["dead-letters", "drop", "--all", "--run-dir", str(broker_dir)], input="n\n"
    )

    assert refused.exit_code == 1
    wait_until(lambda: _count(service) == 1, 30)


def test_a_list_may_be_of_one_tenant_and_short(broker_dir: Path, service: str) -> None:
    for number in range(3):
        _bury(service, message_id=f"m-{number}")
    _bury(service, user="globex")

    assert len(_json("ls", "--limit", "2", run_dir=broker_dir)) == 2
    assert len(_json("ls", "--tenant", "globex", run_dir=broker_dir)) == 1


def test_a_header_of_a_tenant_does_not_make_a_letter_of_ours(
    broker_dir: Path, service: str
) -> None:
    forged = {DEAD: _table(user="globex")}
    act(service, publish(topology.DEAD_EXCHANGE, topology.DEAD_KEY, headers=forged))

    [letter] = _json("ls", run_dir=broker_dir)

    assert (letter["by"], letter["user"]) == ("broker", None)


def test_an_id_that_is_not_there_is_said(broker_dir: Path, service: str) -> None:
    for words in (["show", "dl_x"], ["drop", "dl_x", "--yes"], ["replay", "dl_x"]):
        with pytest.raises(NotFoundError, match="dl_x"):
            _run(*words, run_dir=broker_dir)
    with pytest.raises(InvalidInputError, match="--all"):
        _run("replay", run_dir=broker_dir)


def test_without_a_fleet_it_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="--run-dir, or set BATCHYARD_AMQP_URL"):
        _run("ls", run_dir=tmp_path)


def _table(*, user: str = TENANT, where: str | None = None, **changes: Any) -> dict[str, Any]:
    return dead_table(
        user=user,
        exchange=topology.SUBMIT_EXCHANGE,
        routing_key=_KEY,
        properties={**_SENT, **changes},
        reasons=[
            Reason("schema_invalid", "priority: too high", "priority"),
            Reason("expired", "not_after: over"),
        ],
        reason_count=2,
        deliveries=1,
        at=1_795_165_000,
        where=where,
    )


def _bury(url: str, *, body: bytes = _SECRET.encode(), **changes: Any) -> None:
    headers = {"x-schema": "batch.submit/1", DEAD: _table(**changes)}
    act(
        url,
        publish(
            topology.DEAD_EXCHANGE,
            topology.DEAD_KEY,
            body,
            user_id=SERVICE_USER,
            headers=headers,
            timestamp=datetime.now(UTC),
        ),
    )


def _die_at_the_limit(url: str) -> None:
    """A message that comes back until the broker gives it up."""

    async def reject(channel: AbstractChannel) -> None:
        queue = await channel.get_queue(topology.SUBMIT_QUEUE)
        while (message := await queue.get(fail=False)) is not None:
            await message.reject(requeue=True)

    sent = publish(
        topology.SUBMIT_EXCHANGE, "submit.v1.x", user_id=SERVICE_USER, message_id="m-limit"
    )
    act(url, sent, reject)
    wait_until(lambda: _count(url) == 1, 30)


def _is_refused(url: str) -> bool:
    try:
        act(url, publish(topology.SUBMIT_EXCHANGE, "submit.v1.x"))
    except aio_pika.exceptions.DeliveryError:
        return True
    return False


def _count(url: str) -> int:
    async def count(channel: AbstractChannel) -> int:
        declared = await channel.declare_queue(topology.DEAD_QUEUE, passive=True)
        return declared.declaration_result.message_count or 0

    [found] = act(url, count)
    assert isinstance(found, int)
    return found


async def _purge(channel: AbstractChannel) -> None:
    for name, arguments in topology.QUEUE_ARGUMENTS.items():
        await (await channel.declare_queue(name, durable=True, arguments=dict(arguments))).purge()


def _run(*arguments: str, run_dir: Path) -> Result:
    result: Any = CliRunner().invoke(app, ["dead-letters", *arguments, "--run-dir", str(run_dir)])
    if result.exception is not None:
        raise result.exception
    assert isinstance(result, Result)
    return result


def _json(*arguments: str, run_dir: Path) -> Any:
    return json.loads(_run(*arguments, "--json", run_dir=run_dir).stdout)
