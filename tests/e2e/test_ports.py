"""Closed by default: whatever the fleet listens on refuses everybody without credentials."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

import httpx
import pytest

from tests.e2e import strangers
from tests.e2e.conftest import RunningFleet
from tests.e2e.listeners import Listener, listeners
from tests.e2e.strangers import Asked

#: What of the gateway is for everybody: whether it is well.
_HEALTH = {"/healthz", "/readyz"}
#: Sockets tried at once.
_AT_ONCE = 4

_OF_RAY = [
    *(
        Asked(method, path)
        for path in ("/api/jobs/", "/api/jobs/x", "/api/version", "/anything", "/metrics")
        for method in ("GET", "POST", "PUT", "DELETE")
    ),
    *(
        Asked("GET", path)
        for path in (
            "/nodes?view=summary",
            "/logical/actors",
            "/api/cluster_status",
            "/api/v0/tasks",
            "/api/v0/logs",
            "/api/v0/logs/file?node_id=x&filename=raylet.out",
            "/logs/raylet.out",
            "/static/../api/jobs/",
            "/static/%2e%2e/api/jobs/",
            "/static/../../../../../../../etc/passwd",
            "/api/serve/applications/",
            "/api/actors/kill?actor_id=x&force_kill=true",
            "/api/prometheus/sd",
            "/task/traceback?task_id=x",
            "/worker/traceback?pid=1&node_id=x",
            "/memory_profile?pid=1&node_id=x",
            "/events",
        )
    ),
    Asked("POST", "/api/authenticate"),
    Asked("POST", "/api/job_agent/jobs/"),
    Asked("POST", "/get_or_create_runtime_env"),
    Asked("POST", "/delete_runtime_env_if_possible"),
    Asked("POST", "/get_runtime_envs_info"),
]

_OF_S3 = [
    Asked("GET", "/batchyard"),
    Asked("GET", "/batchyard?list-type=2"),
    Asked("GET", "/batchyard?uploads"),
    Asked("GET", "/batchyard?policy"),
    Asked("PUT", "/batchyard?policy"),
    Asked("PUT", "/batchyard/stranger"),
    Asked("POST", "/batchyard?delete"),
    Asked("DELETE", "/batchyard"),
    Asked("PUT", "/strangers-bucket"),
    Asked("POST", "/?Action=ListUsers&Version=2010-05-08"),
    Asked("POST", "/?Action=GetSessionToken&Version=2011-06-15"),
    Asked("GET", "/swift/v1"),
    Asked("GET", "/auth/v1.0"),
    Asked("GET", "/admin/user"),
    Asked("GET", "/admin/metadata/user"),
]

Gives = Callable[[str], Awaitable[list[str]]]


def _threaded(gives: Callable[[str], list[str]]) -> Gives:
    async def in_a_thread(address: str) -> list[str]:
        return await asyncio.to_thread(gives, address)

    return in_a_thread


async def _ray_http_gives(address: str) -> list[str]:
    return await strangers.http_gives(address, _OF_RAY)


async def _s3_gives(address: str) -> list[str]:
    given = await strangers.http_gives(address, _OF_S3)
    async with httpx.AsyncClient(base_url=f"http://{address}") as http:
        # A list of the stranger's own buckets, of which there are none.
        listing = (await http.get("/")).text
    return given + (["names of buckets"] if "<Bucket>" in listing else [])


#: What listens, by the name of its port, and what is tried there.
_BY_PORT: Mapping[str, Gives] = {
    "rabbitmq": _threaded(strangers.amqp_gives),
    "rabbitmq-distribution": _threaded(strangers.erlang_gives),
    "rabbitmq-epmd": _threaded(strangers.epmd_gives),
    "redis": _threaded(strangers.redis_gives),
    "ceph-mon": _threaded(strangers.ceph_gives),
    "s3": _s3_gives,
    "ray-port": strangers.grpc_gives,
    "ray-node-manager-port": strangers.grpc_gives,
    "ray-object-manager-port": strangers.grpc_gives,
    "ray-dashboard-port": _ray_http_gives,
    "ray-dashboard-agent-listen-port": _ray_http_gives,
    "ray-dashboard-agent-grpc-port": strangers.grpc_gives,
    "ray-runtime-env-agent-port": _ray_http_gives,
    "ray-ray-client-server-port": strangers.grpc_gives,
}
#: The same of programs that take any free port, by what their command holds.
_BY_COMMAND: Mapping[str, Gives] = {
    "ceph-osd": _threaded(strangers.ceph_gives),
    "ray::": strangers.grpc_gives,
    "-m worker lane": strangers.grpc_gives,
    # Where torch's processes of one engine would meet.
    "VLLM::EngineCore": _threaded(strangers.anything_gives),
}
#: What is given all the same. docs/operations.md says so and why.
_GIVEN = {"rabbitmq-epmd": ["batchyard"]}
#: In the title of an engine's replica: Ray lets it listen on all of the machine's addresses.
_EVERYWHERE = ":engine"


class Door(NamedTuple):
    """A listening socket under the name that it has here; without one it is unknown."""

    name: str
    listener: Listener


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
        Door(kept.get(found.port) or _program(found.command), found)
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
    tries = {"gateway": _gateway_gives(warm_chat), **_BY_PORT, **_BY_COMMAND}

    given = asyncio.run(_tried([(tries[door.name], door) for door in doors if door.name in tries]))

    # Workers come and go. What is there no more can be asked nothing.
    still = {found.identity for found in listeners(warm_chat.run_dir, warm_chat.pids)}
    assert [
        (door, what)
        for door, what in given
        if what != _GIVEN.get(door.name, [])
        and (isinstance(what, list) or door.listener.identity in still)
    ] == []


def test_only_this_machine_is_listened_to(doors: list[Door]) -> None:
    elsewhere = [door.listener for door in doors if not door.listener.is_local]

    assert [found for found in elsewhere if _EVERYWHERE not in found.command] == []


def _program(command: str) -> str:
    return next((part for part in _BY_COMMAND if part in command), "")


def _gateway_gives(fleet: RunningFleet) -> Gives:
    """All calls that its own document names, and what frameworks like to serve besides."""
    key = {"authorization": f"Bearer {fleet.environment['OPENAI_API_KEY']}"}
    document = httpx.get(f"{fleet.root_url}/openapi.json", headers=key).json()
    calls = [
        Asked(method.upper(), path.replace("{", "").replace("}", ""))
        for path, methods in document["paths"].items()
        for method in methods
        if path not in _HEALTH
    ]
    assert len(calls) > 20
    others = ("/", "/docs", "/redoc", "/openapi.json", "/metrics", "/ui", "/v1")

    async def gives(address: str) -> list[str]:
        return await strangers.http_gives(
            address, [*calls, *(Asked("GET", path) for path in others)]
        )

    return gives


async def _tried(tries: list[tuple[Gives, Door]]) -> list[tuple[Door, list[str] | Exception]]:
    """What each socket gave, or why it could not be asked."""
    room = asyncio.Semaphore(_AT_ONCE)

    async def tried(gives: Gives, door: Door) -> tuple[Door, list[str] | Exception]:
        address = f"{door.listener.dialled}:{door.listener.port}"
        async with room:
            try:
                return door, await gives(address)
            except (AssertionError, OSError, httpx.HTTPError) as error:
                return door, error

    return await asyncio.gather(*(tried(*one) for one in tries))
