"""Closed by default: every port of the fleet refuses callers without credentials."""

import asyncio
import json
from collections.abc import Mapping

import pytest

from tests.e2e import strangers
from tests.e2e.conftest import RunningFleet
from tests.e2e.doors import (
    Door,
    Gives,
    gateway_gives,
    live_door_gives,
    opened,
    ray_http_gives,
    s3_gives,
    threaded,
)
from tests.e2e.listeners import Listener, listeners

#: The ports of which each replica's door takes one.
_LIVE_PORTS = range(18_800, 18_900)
_LIVE_DOOR = "live door"
#: What listens, by the name of its port, and what is tried there.
_BY_PORT: Mapping[str, Gives] = {
    "rabbitmq": threaded(strangers.amqp_gives),
    "rabbitmq-distribution": threaded(strangers.erlang_gives),
    "rabbitmq-epmd": threaded(strangers.epmd_gives),
    "redis": threaded(strangers.redis_gives),
    "ceph-mon": threaded(strangers.ceph_gives),
    "s3": s3_gives,
    "ray-port": strangers.grpc_gives,
    "ray-node-manager-port": strangers.grpc_gives,
    "ray-object-manager-port": strangers.grpc_gives,
    "ray-dashboard-port": ray_http_gives,
    "ray-dashboard-agent-listen-port": ray_http_gives,
    "ray-dashboard-agent-grpc-port": strangers.grpc_gives,
    "ray-runtime-env-agent-port": ray_http_gives,
    "ray-ray-client-server-port": strangers.grpc_gives,
}
#: The same of programs that take any free port, by what their command holds.
_BY_COMMAND: Mapping[str, Gives] = {
    _LIVE_DOOR: live_door_gives,
    "ceph-osd": threaded(strangers.ceph_gives),
    "ray::": strangers.grpc_gives,
    "-m worker lane": strangers.grpc_gives,
    # Ray's dashboard is a driver as soon as it is asked about engines.
    "ray-dashboard-ServeHead": strangers.grpc_gives,
    # Where torch's processes of one engine would meet.
    "VLLM::EngineCore": threaded(strangers.anything_gives),
}
#: What is given all the same. docs/operations.md says so and why.
_GIVEN = {"rabbitmq-epmd": ["batchyard"]}
#: In the title of an engine's replica: Ray lets it listen on all of the machine's addresses.
_EVERYWHERE = ":engine"


@pytest.fixture(scope="module")
def doors(warm_chat: RunningFleet, warm_embeddings: RunningFleet) -> list[Door]:
    """The sockets of a fleet whose engines work."""
    assert warm_chat is warm_embeddings
    kept = {
        port: name
        for file in warm_chat.run_dir.rglob("ports.json")
        for name, port in json.loads(file.read_text()).items()
    }
    return [
        Door(kept.get(found.port) or _program(found), found, found.address())
        for found in listeners(warm_chat.run_dir, warm_chat.pids)
    ]


def test_each_listening_socket_is_known(doors: list[Door]) -> None:
    known = {"gateway", *_BY_PORT, *_BY_COMMAND}

    assert [door for door in doors if door.name not in known] == []
    # Else the tests below would have tried less than they seem to.
    assert known == {door.name for door in doors}


def test_without_credentials_no_socket_gives_anything(
    doors: list[Door], warm_chat: RunningFleet
) -> None:
    gateway = gateway_gives(warm_chat.root_url, warm_chat.environment["OPENAI_API_KEY"])

    def still() -> set[tuple[str, int, int]]:
        return {found.identity for found in listeners(warm_chat.run_dir, warm_chat.pids)}

    tries = {"gateway": gateway, **_BY_PORT, **_BY_COMMAND}
    assert asyncio.run(opened(doors, tries, _GIVEN, still)) == []


def test_only_this_machine_is_listened_to(doors: list[Door]) -> None:
    elsewhere = [door.listener for door in doors if not door.listener.is_local]

    assert [found for found in elsewhere if _EVERYWHERE not in found.command] == []


def _program(found: Listener) -> str:
    if found.port in _LIVE_PORTS and "ray::" in found.command:
        return _LIVE_DOOR
    return next((part for part in _BY_COMMAND if part in found.command), "")
