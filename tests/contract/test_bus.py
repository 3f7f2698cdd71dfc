"""The bus door as an operator runs it: the exported topology, and processes that declare nothing.

The examples and the JSON schemas meet real messages here, as a tenant with a tenant's rights.
"""

import asyncio
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import aio_pika
import jsonschema
import pytest
import yaml
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractMessage
from typer.testing import CliRunner

from cli import servers
from cli.__main__ import app
from shared import ids
from shared.bus import messages, open_messages, topology
from shared.bus.connection import Bus
from shared.bus.event_shapes import EVENT_TYPES, PIPELINE_EVENT_TYPES
from shared.bus.received import RECEIVED
from shared.errors import SetupError
from tests.contract.conftest import CHAT, MODEL, Caller, ServiceYard, calling, rows, running_yard
from tests.contract.engine import WAIT
from tests.contract.installing import call, installed, installed_for_node
from tests.contract.receiver import Receiver
from tests.eventually import eventually, wait_until
from tests.examples import assert_runs, examples
from tests.servers import S3, SERVICE, TENANT, absent

# The first one starts a broker with its management and two processes.
pytestmark = pytest.mark.timeout(300)

_ROOT = Path(__file__).parents[2]
_EXAMPLES = _ROOT / "examples/bus"
#: What the names of the queues end in that the tests of messages use.
_DOOR = "door"


class Site(NamedTuple):
    """A broker that holds what the operator loaded, and our processes on it."""

    broker: servers.RabbitMQ
    yard: ServiceYard

    @property
    def environment(self) -> dict[str, str]:
        """What `up --write-env` would give a tenant's programs."""
        return {
            **{name: text for name, text in os.environ.items() if "BATCHYARD" not in name},
            "BATCHYARD_AMQP_URL": self.broker.url(TENANT),
            "RABBITMQ_MANAGEMENT_PORT": str(self.broker.management_port),
        }


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, redis_url: str, s3: S3) -> Iterator[Site]:
    if servers.missing(("rabbitmq",)):
        absent("RabbitMQ's programs", "PATH")
    folder = tmp_path_factory.mktemp("bus")
    broker = servers.RabbitMQ(folder, [], holds=_exported(folder), with_management=True)
    try:
        broker.start()
        redis = f"{redis_url.rpartition('/')[0]}/12"
        url = broker.url(SERVICE)
        with running_yard(folder, redis, url, s3, declare_topology="false") as yard:
            yield Site(broker, yard)
    finally:
        broker.kill()


@pytest.fixture
def acme(site: Site) -> Iterator[Caller]:
    """The tenant of the examples, by HTTP."""
    yield from calling(site.yard, TENANT.name)


def _exported(folder: Path) -> dict[str, Any]:
    """What an operator gets from our command; and a virtual host in which nothing was made."""
    passwords = folder / "passwords.json"
    passwords.write_text(json.dumps({user.name: user.password for user in (SERVICE, TENANT)}))
    arguments = ["topology", "--definitions", "--tenant", TENANT.name]
    arguments += [f"--queue={name}" for name in ("main", _DOOR)]
    result = CliRunner().invoke(app, [*arguments, "--passwords", str(passwords)])
    definitions: dict[str, Any] = json.loads(result.output)
    [own] = [row for row in definitions["permissions"] if row["user"] == SERVICE.name]
    assert own["configure"] == "^$"
    definitions["vhosts"].append({"name": "empty"})
    definitions["permissions"].append({**own, "vhost": "empty"})
    # rabbitmqadmin speaks to the management plugin.
    for user in definitions["users"]:
        user["tags"] = "management" if user["name"] == TENANT.name else ""
    return definitions


def test_the_python_example_publishes_and_follows(site: Site, tmp_path: Path) -> None:
    state = tmp_path / "state.sqlite"
    python = [sys.executable, "-W", "error"]

    def known() -> dict[str, str]:
        with closing(sqlite3.connect(state)) as found:
            return dict(found.execute("SELECT source, type FROM batches"))

    _run_example(
        site,
        submit=[*python, "submit.py"],
        subscribe=[*python, "subscribe.py", str(state)],
        known=known,
        folder=tmp_path,
        message_id="python-1",
    )


def test_the_node_example_publishes_and_follows(site: Site, tmp_path: Path) -> None:
    packages = installed_for_node("bus", _ROOT / "locks/bus-node.txt")
    for name in ("submit.mjs", "subscribe.mjs"):
        shutil.copy(_EXAMPLES / name, packages)
    state = tmp_path / "state.json"

    _run_example(
        site,
        submit=["node", str(packages / "submit.mjs")],
        subscribe=["node", str(packages / "subscribe.mjs"), str(state)],
        known=lambda: {
            source: batch["type"] for source, batch in json.loads(state.read_text()).items()
        },
        folder=tmp_path,
        message_id="node-1",
    )


def test_the_rabbitmqadmin_example_publishes_and_follows(site: Site, tmp_path: Path) -> None:
    if shutil.which("rabbitmqadmin") is None:
        pytest.skip("NOT TESTED: there is no rabbitmqadmin. RabbitMQ's management plugin has it.")
    tools = _amqp_tools()
    state = tmp_path / "state"
    state.mkdir()

    def known() -> dict[str, str]:
        return {
            f"/tenants/{TENANT.name}/batches/{file.name}": file.read_text().split()[1]
            for file in state.glob("batch_*")
        }

    _run_example(
        site,
        submit=["./submit.sh"],
        subscribe=["./subscribe.sh", str(state)],
        known=known,
        folder=tmp_path,
        message_id="shell-1",
        is_whole=True,
        tools=tools,
    )


def _run_example(
    site: Site,
    *,
    submit: Sequence[str],
    subscribe: Sequence[str],
    known: Callable[[], dict[str, str]],
    folder: Path,
    message_id: str,
    is_whole: bool = False,
    tools: Path | None = None,
) -> None:
    """Two publishings of one batch, and a subscriber who was away when it ended."""
    given = folder / "input"
    lines = rows("first", "second")
    given.write_bytes(_whole(lines) if is_whole else lines)
    source = f"/tenants/{TENANT.name}/batches/{ids.batch_id(TENANT.name, message_id)}"
    queue = f"sub.{TENANT.name}.main"
    for _ in range(2):
        done = subprocess.run(
            [*submit, str(given), message_id],
            cwd=_EXAMPLES,
            env=site.environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    with _running(site, subscribe, folder, tools) as log:
        wait_until(lambda: _ends(known).get(source) == "batch.completed")
    assert "batch.in_progress" in log.read_text()
    asyncio.run(_purge(site, queue))


async def test_every_message_is_what_its_schema_says(site: Site, acme: Caller) -> None:
    async with _open_door(site) as door:
        batch = await door.submit(_batch("one", "two", WAIT, WAIT), "schemas-1")
        await door.submit(_batch("one", "two", WAIT, WAIT), "schemas-1")
        await door.hears(batch, "batch.progress")
        for call in ("/pause", "/resume", ""):
            await _post(acme, f"batches/{batch}{call}", {"metadata": {"k": "v"}})
        site.yard.engine.release(batch)
        failed = await door.submit(_batch("one", model="no-such-model"), "schemas-2")
        cancelled = await door.submit(_batch(WAIT), "schemas-3")
        expired = await door.submit(_batch(WAIT), "schemas-4")
        for waiting in (cancelled, expired):
            await door.hears(waiting, "batch.in_progress")
        await _post(acme, f"batches/{cancelled}/cancel", {})
        site.yard.close_window(expired)
        refused = _batch("one") | {"surprise": 1, "priority": 10}
        await door.submit(refused, "schemas-5")
        await door.hears(batch, "batch.completed")
        await door.hears(failed, "batch.failed")
        await door.hears(cancelled, "batch.cancelled")
        await door.hears(expired, "batch.expired")
        await eventually(lambda: door.answers == _ANSWERS)

    assert [wrong for message in door.sent for wrong in _wrong(message)] == []
    assert not _validator("batch.submit.v1").is_valid(refused)
    assert {message.type for message in door.events} == _WHAT_A_BATCH_TELLS


async def test_each_end_of_a_pipeline_is_what_its_schema_and_http_say(
    site: Site, acme: Caller, receiver: Receiver
) -> None:
    await _hook(acme, receiver)
    async with _open_door(site) as door:
        ids_of = {
            "completed": await _pipeline(acme, "one"),
            "failed": await _pipeline(acme, "one", before=_without_vectors(acme)),
            "cancelled": await _pipeline(acme, WAIT),
            "expired": await _pipeline(acme, WAIT),
        }
        await _post(acme, f"pipelines/{ids_of['cancelled']}/cancel", {})
        [stage] = (await _shown(acme, ids_of["expired"]))["stages"]
        site.yard.close_window(stage["batch_id"])
        for status, pipeline_id in ids_of.items():
            await door.hears(pipeline_id, f"pipeline.{status}")
        await eventually(lambda: _called(receiver) == set(ids_of.items()))

    ends = [message for message in door.events if str(message.type).startswith("pipeline.")]
    assert [wrong for message in ends for wrong in _wrong(message)] == []
    for message in ends:
        event = json.loads(message.body)
        assert event["data"] == await _shown(acme, event["subject"])
        assert event["source"] == f"/tenants/{TENANT.name}/pipelines/{event['subject']}"
        assert message.routing_key == f"{event['type']}.{TENANT.name}.{event['subject']}"


@pytest.mark.parametrize("point", ["pipelines.end_written", "pipelines.ended"])
async def test_the_end_of_a_pipeline_is_told_by_the_next_dispatcher(
    point: str, site: Site, acme: Caller, receiver: Receiver
) -> None:
    dispatcher = site.yard.dispatcher
    await _hook(acme, receiver)
    async with _open_door(site) as door:
        dispatcher.restart(BATCHYARD_CRASH_AT=point)
        dispatcher.wait()
        pipeline_id = await _pipeline(acme, "one")
        await eventually(lambda: dispatcher.child.poll() is not None, timeout=60)
        was_told = any(one.type == "pipeline.completed" for one in door.events)
        dispatcher.restart(BATCHYARD_CRASH_AT="")
        await door.hears(pipeline_id, "pipeline.completed")
        await eventually(lambda: _called(receiver) == {("completed", pipeline_id)})

    # Before its record says so nobody hears it, and however often it is told it is the same.
    assert not (was_told and point == "pipelines.end_written")
    told = {one.body for one in door.events if one.type == "pipeline.completed"}
    assert [json.loads(body)["id"] for body in told] == [f"evt_{pipeline_id}_00000001"]


async def test_an_open_batch_lives_by_messages(site: Site) -> None:
    opening = {"schema": "batch.submit/1", "endpoint": CHAT}
    async with _open_door(site) as door:
        batch = await door.submit({**opening, "input": {"kind": "open", "model": MODEL}}, "open-1")
        await eventually(lambda: ("open-1", False) in door.answers)
        named = {"batch_id": batch}
        more = {**named, "requests": _batch("one", "two")["input"]["requests"]}
        await door.say(open_messages.REQUESTS, {"schema": "batch.requests/1", **more}, "open-2")
        await eventually(lambda: ("open-2", False) in door.answers)
        await door.say(open_messages.CLOSE, {"schema": "batch.close/1", **named}, "open-3")
        await door.hears(batch, "batch.completed")
        await eventually(lambda: ("open-3", False) in door.answers)

    assert [wrong for message in door.sent for wrong in _wrong(message)] == []


def test_the_example_of_open_batches_runs(site: Site, tmp_path: Path) -> None:
    example = examples()["open-batches.md-2"]

    assert_runs(example, {**site.environment, "CHAT_MODEL": MODEL}, folder=tmp_path, timeout=240)


async def test_the_example_of_the_document_is_taken_as_it_stands(site: Site) -> None:
    examples = _document()["components"]["messages"]["batch.submit.v1"]["examples"]
    [inline] = [example["payload"] for example in examples if example["name"] == "inline"]

    async with _open_door(site) as door:
        await door.submit(inline, "document-1")
        await eventually(lambda: bool(door.answers))

    assert door.answers == {("document-1", False)}


async def test_what_is_missing_in_the_broker_is_said_and_not_made(site: Site) -> None:
    url = site.broker.url(SERVICE).rpartition("/")[0] + "/empty"

    with pytest.raises(SetupError) as found:
        await Bus(url).connect(declares=False)

    wanted = {*topology.EXCHANGE_TYPES, *topology.REQUIRED_QUEUES}
    assert set(re.findall(r"(?:exchange|queue) '([^']+)'", str(found.value))) == wanted
    assert "batchyard topology --definitions" in str(found.value)
    with pytest.raises(SetupError, match="does not let us declare"):
        await Bus(url).connect()


async def test_a_lost_connection_is_taken_up_without_declaring(site: Site) -> None:
    before = site.yard.dispatcher.child.pid
    await asyncio.to_thread(site.broker.ctl, "close_all_connections", "lost for a test")

    async with _open_door(site) as door:
        batch = await door.submit(_batch("one"), "lost-1")
        await door.hears(batch, "batch.completed")

    assert (site.yard.dispatcher.child.pid, site.yard.dispatcher.child.poll()) == (before, None)


#: Everything that is announced of a batch, but for what needs an engine that dies, or a setting.
_WHAT_A_BATCH_TELLS = {name for name in EVENT_TYPES if name.startswith("batch.")}


#: To what `test_every_message_is_what_its_schema_says` sends: whether it was known, or refused.
_ANSWERS = {
    ("schemas-1", False),
    ("schemas-1", True),
    ("schemas-2", False),
    ("schemas-3", False),
    ("schemas-4", False),
    ("schemas-5", "rejected"),
}


class _Door:
    """The tenant at the broker: what it sends, and all that it gets."""

    def __init__(self, channel: AbstractChannel, replies: str) -> None:
        self._channel = channel
        self._replies = replies
        self.sent: list[AbstractIncomingMessage] = []

    @property
    def events(self) -> list[AbstractIncomingMessage]:
        return [message for message in self.sent if message.type != "batch.reply.v1"]

    @property
    def answers(self) -> set[tuple[str | None, Any]]:
        """What the replies say, each once: they come in any order, and perhaps again."""
        replies = [message for message in self.sent if message.type == "batch.reply.v1"]
        bodies = [(message.correlation_id, json.loads(message.body)) for message in replies]
        return {(name, body.get("duplicate", body["status"])) for name, body in bodies}

    async def take(self, message: AbstractIncomingMessage) -> None:
        self.sent.append(message)
        await message.ack()

    async def submit(self, body: dict[str, Any], message_id: str) -> str:
        """The id of the batch that it is to become."""
        await self.say(messages.SUBMIT, body, message_id)
        return ids.batch_id(TENANT.name, message_id)

    async def say(self, kind: str, body: dict[str, Any], message_id: str) -> None:
        """Publish a message as the document has it."""
        message = aio_pika.Message(
            json.dumps(body).encode(),
            message_id=message_id,
            type=kind,
            user_id=TENANT.name,
            content_type="application/json",
            delivery_mode=aio_pika.DeliveryMode.PERSISTENT,
            reply_to=self._replies,
        )
        assert _wrong_properties(message, "received") == []
        exchange = await self._channel.get_exchange(topology.SUBMIT_EXCHANGE, ensure=False)
        await exchange.publish(message, RECEIVED[kind].key(TENANT.name), mandatory=True)

    async def hears(self, batch_id: str, kind: str) -> None:
        """Return once the event has come."""
        await eventually(
            lambda: any(
                message.type == kind and json.loads(message.body)["subject"] == batch_id
                for message in self.events
            ),
            timeout=30,
        )


@asynccontextmanager
async def _open_door(site: Site) -> AsyncIterator[_Door]:
    async with await aio_pika.connect(site.broker.url(TENANT)) as connection:
        channel = await connection.channel()
        tenant = TENANT.name
        replies = await channel.get_queue(f"reply.{tenant}.{_DOOR}")
        events = await channel.get_queue(f"sub.{tenant}.{_DOOR}")
        for queue in (replies, events):
            await queue.purge()
        door = _Door(channel, replies.name)
        await replies.consume(door.take)
        await events.consume(door.take)
        yield door


def _batch(*says: str, model: str = MODEL) -> dict[str, Any]:
    """The body of a submission."""
    requests = [
        {**json.loads(line), "body": {**json.loads(line)["body"], "model": model}}
        for line in rows(*says).splitlines()
    ]
    body = {"schema": "batch.submit/1", "endpoint": CHAT}
    return {**body, "input": {"kind": "inline", "requests": requests}}


async def _post(caller: Caller, path: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = await asyncio.to_thread(caller.http.post, f"/v1/{path}", json=body)
    assert answer.status_code == 200, answer.text
    answered: dict[str, Any] = answer.json()
    return answered


async def _pipeline(caller: Caller, says: str, *, before: Sequence[dict[str, Any]] = ()) -> str:
    """The id of a new pipeline that asks one question, behind these stages."""
    template = {"model": MODEL, "messages": [{"role": "user", "content": "{{ text }}"}]}
    source = {"file_id": _rows_file(caller, {"text": says}), "columns": ["text"]}
    stages = [*before, {"call": {"endpoint": CHAT, "template": template}}]
    made = await _post(caller, "pipelines", {"input": source, "stages": stages})
    return str(made["id"])


def _without_vectors(caller: Caller) -> list[dict[str, Any]]:
    """A stage that fails its pipeline."""
    table = {"file_id": _rows_file(caller, {"v": None}), "columns": {"found": "v"}, "vector": "v"}
    return [{"top_k": {**table, "query": "text", "k": 1, "into": "near"}}]


def _rows_file(caller: Caller, row: dict[str, Any]) -> str:
    rows = ("rows.jsonl", json.dumps(row).encode())
    return caller.upload(b"", file=rows, purpose="user_data")


async def _shown(caller: Caller, pipeline_id: str) -> dict[str, Any]:
    answer = await asyncio.to_thread(caller.http.get, f"/v1/pipelines/{pipeline_id}")
    shown: dict[str, Any] = answer.json()
    return shown


async def _hook(caller: Caller, receiver: Receiver) -> None:
    """Have the receiver called when pipelines end."""
    kinds = list(PIPELINE_EVENT_TYPES)
    body = {"name": "ends", "url": receiver.url, "event_types": kinds}
    await _post(caller, "webhook_endpoints", body)


def _called(receiver: Receiver) -> set[tuple[str, str]]:
    """How which pipelines ended, as the receiver was told."""
    bodies = [json.loads(one.body) for one in receiver.deliveries]
    return {(one["type"].removeprefix("pipeline."), one["data"]["id"]) for one in bodies}


def _wrong(message: AbstractIncomingMessage) -> Iterator[str]:
    """Where the message is not what docs/schemas and docs/asyncapi.yaml say."""
    for error in _validator(message.type or "").iter_errors(json.loads(message.body)):
        yield f"{message.type} {error.json_path}: {error.message}"
    yield from _wrong_properties(message, "reply" if "reply" in str(message.type) else "event")


def _wrong_properties(message: AbstractMessage, kind: str) -> list[str]:
    components = _document()["components"]
    described = components["messageTraits"][kind] | components["messages"][message.type]
    schema = described["x-amqp-properties"]
    properties = {
        name: getattr(message, name)
        for name in (*schema["properties"], "expiration")
        if getattr(message, name) is not None
    }
    errors = jsonschema.Draft202012Validator(_strict(schema)).iter_errors(properties)
    return [f"{kind}: {error.message}" for error in errors]


@cache
def _document() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((_ROOT / "docs/asyncapi.yaml").read_text())
    return document


@cache
def _validator(name: str) -> jsonschema.Draft202012Validator:
    schema = json.loads((_ROOT / f"docs/schemas/{name}.json").read_text())
    return jsonschema.Draft202012Validator(_strict(schema))


def _strict(schema: Any) -> Any:
    """The schema, refusing what it does not describe: subscribers ignore it, we do not send it."""
    if isinstance(schema, list):
        return [_strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _strict(value) for key, value in schema.items()}
    if made.get("type") == "object" and isinstance(made.get("properties"), dict):
        made.setdefault("additionalProperties", False)
    return made


def _amqp_tools() -> Path | None:
    """A folder with amqp-consume, fetched where it is not installed; None where it is."""
    if shutil.which("amqp-consume"):
        return None

    def unpack(folder: Path) -> None:
        for package in ("amqp-tools", "librabbitmq4"):
            call(["bash", "-ec"], [f"cd {folder} && apt-get download -qq {package}"])
        for archive in folder.glob("*.deb"):
            call(["dpkg-deb", "-x", str(archive)], [str(folder)])

    return installed("amqp-tools", [], unpack)


def _whole(lines: bytes) -> bytes:
    requests = [json.loads(line) for line in lines.splitlines()]
    body = {"schema": "batch.submit/1", "endpoint": CHAT}
    return json.dumps({**body, "input": {"kind": "inline", "requests": requests}}).encode()


def _ends(known: Callable[[], dict[str, str]]) -> dict[str, str]:
    """What the subscriber keeps; nothing while it is about to begin."""
    try:
        return known()
    except (FileNotFoundError, sqlite3.OperationalError):
        return {}


@contextmanager
def _running(
    site: Site, command: Sequence[str], folder: Path, tools: Path | None
) -> Iterator[Path]:
    """A subscriber with its children, whose output goes to the file."""
    log = folder / "log"
    environment = dict(site.environment)
    if tools is not None:
        environment["PATH"] += f":{tools}/usr/bin"
        environment["LD_LIBRARY_PATH"] = str(next(tools.glob("usr/lib/*-linux-gnu")))
    with log.open("wb") as output:
        child = subprocess.Popen(
            list(command),
            cwd=_EXAMPLES,
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            yield log
        except AssertionError as error:
            raise AssertionError(f"{error}\n{log.read_text()}") from error
        finally:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()


async def _purge(site: Site, queue: str) -> None:
    async with await aio_pika.connect(site.broker.url(TENANT)) as connection:
        await (await (await connection.channel()).get_queue(queue)).purge()
