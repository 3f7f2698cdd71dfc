"""What is tried at each kind of listening socket of a fleet, however it was started."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import httpx

from shared.openai.endpoints import ENDPOINTS
from tests.e2e import strangers
from tests.e2e.listeners import Listener
from tests.e2e.strangers import Asked

#: What of the gateway is for everybody: whether it is well.
_HEALTH = {"/healthz", "/readyz"}
#: What frameworks like to serve besides.
_OTHERS = ("/", "/docs", "/redoc", "/openapi.json", "/metrics", "/ui", "/v1")
#: What leads a stranger to the form to sign in.
_PAGE = ("/", "/ui", "/ui/batches", "/ui/events", "/ui/fleet", "/ui/new", "/ui/tenants")
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
    Asked("GET", "/minio/v2/metrics/cluster"),
    Asked("GET", "/minio/admin/v3/info"),
]

#: What a socket at this address gives a stranger.
Gives = Callable[[str], Awaitable[list[str]]]


class Door(NamedTuple):
    """A listening socket under the name that it has here; without one it is unknown."""

    name: str
    listener: Listener
    #: Where a stranger finds it.
    address: str


async def opened(
    doors: Iterable[Door],
    tries: Mapping[str, Gives],
    given: Mapping[str, Sequence[str]],
    still: Callable[[], set[tuple[str, int, int]]],
) -> list[tuple[Door, list[str] | Exception]]:
    """The doors that gave something else than their names are `given` here, or could not be asked.

    `still` gives the identities of what listens in the end: what is there no more can be asked
    nothing, and workers come and go.
    """
    room = asyncio.Semaphore(_AT_ONCE)

    async def tried(door: Door) -> tuple[Door, list[str] | Exception]:
        async with room:
            try:
                return door, await tries[door.name](door.address)
            except (AssertionError, OSError, httpx.HTTPError) as error:
                return door, error

    answers = await asyncio.gather(*(tried(door) for door in doors if door.name in tries))
    there = still()
    return [
        (door, what)
        for door, what in answers
        if what != given.get(door.name, [])
        and (isinstance(what, list) or door.listener.identity in there)
    ]


def threaded(gives: Callable[[str], list[str]]) -> Gives:
    async def in_a_thread(address: str) -> list[str]:
        return await asyncio.to_thread(gives, address)

    return in_a_thread


async def ray_http_gives(address: str) -> list[str]:
    return await strangers.http_gives(address, _OF_RAY)


async def live_door_gives(address: str) -> list[str]:
    """Every endpoint of an engine, and what frameworks like to serve besides."""
    posts = [Asked("POST", path) for path in ENDPOINTS]
    return await strangers.http_gives(address, [*posts, *(Asked("GET", path) for path in _OTHERS)])


async def s3_gives(address: str) -> list[str]:
    given = await strangers.http_gives(address, _OF_S3)
    async with httpx.AsyncClient(base_url=f"http://{address}") as http:
        # A list of the stranger's own buckets, of which there are none.
        listing = (await http.get("/")).text
    return given + (["names of buckets"] if "<Bucket>" in listing else [])


async def dispatcher_gives(address: str) -> list[str]:
    return await strangers.http_gives(address, [Asked("GET", path) for path in _OTHERS])


def gateway_gives(root_url: str, key: str) -> Gives:
    """All calls that its own document names, which the key may read, and some more."""
    headers = {"authorization": f"Bearer {key}"}
    document = httpx.get(f"{root_url}/openapi.json", headers=headers).json()
    calls = [
        Asked(method.upper(), path.replace("{", "").replace("}", ""))
        for path, methods in document["paths"].items()
        for method in methods
        if path not in _HEALTH
    ]
    assert len(calls) > 20

    async def gives(address: str) -> list[str]:
        others = [Asked("GET", path) for path in _OTHERS if path not in _PAGE]
        given = await strangers.http_gives(address, [*calls, *others])
        return given + await _page_gives(address)

    return gives


async def _page_gives(address: str) -> list[str]:
    """Every path of the page that shows anything but the form to sign in."""
    async with httpx.AsyncClient(base_url=f"http://{address}", follow_redirects=True) as http:
        answers = [await http.get(path) for path in _PAGE]
    return [str(answer.url) for answer in answers if answer.url.path != "/ui/sign-in"]
