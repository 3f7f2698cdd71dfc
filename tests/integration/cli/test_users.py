"""`batchyard users` on a real broker: what a login that it made may do, and what it may not."""

import asyncio
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import aio_pika
import pytest
from aiormq.exceptions import AMQPError, ChannelAccessRefused
from typer.testing import CliRunner, Result

from cli import servers
from cli.__main__ import app
from cli.fleet.running import amqp_url, rabbitmq
from shared.bus import topology
from shared.errors import BatchyardError, InvalidInputError, NotFoundError, SetupError
from tests.integration.cli.conftest import Action, act, bind, bind_exchange, declare, publish, take


@pytest.fixture(scope="module")
def acme(broker_dir: Path, fleet_broker: servers.RabbitMQ) -> str:
    """The URL of a user that the command has made."""
    made = json.loads(_run("create", "--tenant", "acme", "--json", run_dir=broker_dir).stdout)
    assert made["user"] == "acme"
    assert made["password"] in made["url"]
    url: str = made["url"]
    return url


@pytest.fixture(scope="module")
def globex(broker_dir: Path, fleet_broker: servers.RabbitMQ) -> str:
    """The URL of a user that the printed commands have made."""
    shown = _run(
        "create", "--tenant", "globex", "--print", "rabbitmqctl", "--json", run_dir=broker_dir
    )
    made = json.loads(shown.stdout)
    broker = rabbitmq(broker_dir)
    for line in made["commands"]:
        words, password = _as_a_shell_reads(line)
        broker.ctl(*words, standard_input=password)
    return re.sub("//acme:[^@]*@", f"//globex:{made['password']}@", _url_like(broker_dir))


def test_a_tenant_submits_and_hears_its_own_events_and_no_others(
    broker_dir: Path, acme: str, globex: str
) -> None:
    for name, url in (("acme", acme), ("globex", globex)):
        act(
            url,
            publish(topology.SUBMIT_EXCHANGE, f"submit.v1.{name}", user_id=name),
            publish(topology.SUBMIT_EXCHANGE, f"cancel.v1.{name}", user_id=name),
            publish(topology.SUBMIT_EXCHANGE, topology.requests_key(name), user_id=name),
            publish(topology.SUBMIT_EXCHANGE, topology.close_key(name), user_id=name),
            publish(topology.LIVE_EXCHANGE, topology.live_key(name), user_id=name),
        )
    service = amqp_url(broker_dir, None)
    for name in ("acme", "globex"):
        key = topology.event_key("batch.completed", name, "batch_1")
        act(service, publish(topology.EVENTS_EXCHANGE, key, key.encode()))

    submitted = act(service, *[take(topology.SUBMIT_QUEUE)] * 8)
    heard = act(acme, take("sub.acme.main"), take("sub.acme.main"))

    assert [message.user_id for message in submitted] == ["acme"] * 4 + ["globex"] * 4
    assert heard[0].body == b"batch.completed.acme.batch_1"
    assert heard[1] is None


@pytest.mark.parametrize(
    "action",
    [
        publish(topology.SUBMIT_EXCHANGE, "submit.v1.globex"),
        publish(topology.SUBMIT_EXCHANGE, "cancel.v1.globex"),
        publish(topology.SUBMIT_EXCHANGE, "requests.v1.globex"),
        publish(topology.SUBMIT_EXCHANGE, "close.v1.globex"),
        publish(topology.LIVE_EXCHANGE, "live.v1.globex"),
        publish(topology.EVENTS_EXCHANGE, "batch.completed.acme.batch_1"),
        publish(topology.DEAD_EXCHANGE, topology.DEAD_KEY),
        publish("", topology.SUBMIT_QUEUE),
        publish("", topology.LIVE_QUEUE),
        publish("", "sub.globex.main"),
        declare("sub.acme.another"),
        declare("sub.acme.main"),
        lambda channel: channel.declare_exchange("sub.acme.main"),
        lambda channel: channel.queue_delete("sub.acme.main"),
        bind("sub.acme.main", topology.EVENTS_EXCHANGE, "batch.*.acme.*"),
        bind("sub.acme.main", topology.EVENTS_EXCHANGE, "batch.*.globex.*"),
        bind_exchange(topology.SUBMIT_EXCHANGE, topology.EVENTS_EXCHANGE, "batch.*.acme.*"),
        declare("sub.globex.mine"),
        declare("reply.globex.mine"),
        take(topology.SUBMIT_QUEUE),
        take(topology.LIVE_QUEUE),
        take(topology.DEAD_QUEUE),
        take("sub.globex.main"),
    ],
    ids=[
        "submit for another",
        "cancel for another",
        "add requests for another",
        "close for another",
        "a live call for another",
        "forge an event",
        "forge a dead letter",
        "our queue by the default exchange",
        "our queue of live calls by the default exchange",
        "another's queue by the default exchange",
        "declare a further queue",
        "declare a queue again, with arguments of its own",
        "declare an exchange",
        "delete a queue",
        "bind a queue to its own events",
        "bind a queue to another's events",
        "bind its own events to the submissions",
        "declare another's subscription",
        "declare another's replies",
        "read submissions",
        "read live calls",
        "read dead letters",
        "read another's events",
    ],
)
def test_what_is_not_a_tenants_own_is_refused(action: Action, acme: str, globex: str) -> None:
    with pytest.raises(ChannelAccessRefused):
        act(acme, action)


def test_connections_and_channels_are_bounded_and_the_broker_says_so(
    broker_dir: Path, fleet_broker: servers.RabbitMQ, acme: str
) -> None:
    made = json.loads(_run("create", "--tenant", "greedy", "--json", run_dir=broker_dir).stdout)
    bounds = ["--connections", "2", "--channels", "3", "--queue", "a", "--queue", "b", "--json"]
    limited = json.loads(_run("limit", "greedy", *bounds, run_dir=broker_dir).stdout)

    async def refused() -> str:
        async with await aio_pika.connect(made["url"]) as first:
            channels = [await first.channel() for _ in range(3)]
            assert [await channels[0].get_queue(f"sub.greedy.{name}") for name in "ab"]
            async with await aio_pika.connect(made["url"]) as second:
                with pytest.raises(AMQPError) as one_more_channel:
                    await second.channel()
            async with await aio_pika.connect(made["url"]):
                with pytest.raises(AMQPError, match=r"Connection\.Close"):
                    await aio_pika.connect(made["url"])
        return str(one_more_channel.value)

    assert limited == {
        "user": "greedy",
        "max-connections": 2,
        "max-channels": 3,
        "queues": ["a", "b"],
        "events": ["batch.*", "pipeline.*"],
    }
    assert "number of channels opened for user 'greedy' has reached" in asyncio.run(refused())
    # The client keeps the broker's words to itself while it connects.
    assert "connection limit (2) is reached" in fleet_broker.child.tail_of_log(50)


def test_a_user_is_listed_renewed_and_removed(broker_dir: Path, acme: str) -> None:
    trail = broker_dir / "trail.jsonl"
    trail.unlink(missing_ok=True)
    made = json.loads(_run("create", "--tenant", "late", "--json", run_dir=broker_dir).stdout)
    listed = json.loads(_run("list", "--json", run_dir=broker_dir).stdout)
    renewed = json.loads(_run("renew", "late", "--json", run_dir=broker_dir).stdout)

    with pytest.raises(AMQPError):
        act(made["url"])
    assert act(renewed["url"]) == []
    assert {"user": "late"} in listed
    assert _run("delete", "late", run_dir=broker_dir).stdout == "deleted  late\n"
    with pytest.raises(AMQPError):
        act(renewed["url"])
    lines = [json.loads(line) for line in trail.read_text().splitlines()]
    assert [(line["act"], line["tenant"], line["result"]) for line in lines] == [
        (f"user.{verb}", "late", "done") for verb in ("created", "renewed", "deleted")
    ]
    assert made["password"] not in trail.read_text()


def test_printed_definitions_make_the_same_user(broker_dir: Path, acme: str) -> None:
    shown = _run("create", "--tenant", "third", "--print", "definitions", run_dir=broker_dir)
    password = shown.stderr.split()[-1]
    assert password not in shown.stdout
    rabbitmq(broker_dir).ctl("import_definitions", standard_input=shown.stdout)
    url = re.sub("//acme:[^@]*@", f"//third:{password}@", acme)

    act(url, publish(topology.SUBMIT_EXCHANGE, "submit.v1.third", user_id="third"))

    [message] = act(amqp_url(broker_dir, None), take(topology.SUBMIT_QUEUE))
    assert message.user_id == "third"
    with pytest.raises(ChannelAccessRefused):
        act(url, publish(topology.SUBMIT_EXCHANGE, "submit.v1.acme"))


def test_the_virtual_host_of_a_broker_of_ones_own_can_be_named() -> None:
    shown = _run("create", "--tenant", "acme", "--print", "definitions", "--vhost", "llm")

    made = json.loads(shown.stdout)
    assert {row["vhost"] for row in made["permissions"] + made["topic_permissions"]} == {"llm"}


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (["create", "--tenant", "No Spaces"], InvalidInputError, "--tenant No Spaces"),
        (["create", "--tenant", "batchyard"], InvalidInputError, "own processes"),
        (["create", "--tenant", "acme"], InvalidInputError, "renew acme"),
        (["renew", "nobody"], NotFoundError, "nobody"),
        (["delete", "batchyard"], NotFoundError, "batchyard"),
    ],
)
def test_what_is_wrong_is_said_in_one_message(
    arguments: list[str],
    error: type[BatchyardError],
    said: str,
    broker_dir: Path,
    acme: str,
) -> None:
    with pytest.raises(error, match=said):
        _run(*arguments, run_dir=broker_dir)


def test_without_a_fleet_it_says_how_else(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="--print"):
        _run("list", run_dir=tmp_path)


# The last one: it takes the broker away for the length of a boot.
def test_users_outlive_the_broker_that_was_killed(
    fleet_broker: servers.RabbitMQ, acme: str
) -> None:
    fleet_broker.kill()
    fleet_broker.start()

    assert act(acme) == []


def _as_a_shell_reads(line: str) -> tuple[list[str], str]:
    """The arguments of `rabbitmqctl` in it, and what it gets on its input."""
    shim = 'rabbitmqctl() { printf "%s\\n" "$@" >&2; cat; }'
    run = subprocess.run(
        ["bash", "-c", f"{shim}; {line}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stderr.splitlines(), run.stdout


def _url_like(broker_dir: Path) -> str:
    return amqp_url(broker_dir, None).replace("//batchyard:", "//acme:")


def _run(*arguments: str, run_dir: Path | None = None) -> Result:
    where = ["--run-dir", str(run_dir)] if run_dir else []
    result: Any = CliRunner().invoke(app, ["users", *arguments, *where])
    if result.exception is not None:
        raise result.exception
    assert isinstance(result, Result)
    return result
