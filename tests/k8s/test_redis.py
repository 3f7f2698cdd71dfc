"""What k8s/base/redis.yaml starts, started here."""

import os
import subprocess
from pathlib import Path
from typing import Any

import redis
from redis.backoff import ConstantBackoff
from redis.retry import Retry

from cli import servers
from tests.k8s.pods import pods, title
from tests.k8s.rendering import Document
from tests.servers import absent

_GIB = 2**30


def test_redis_begins_closed_and_bound_by_the_memory_of_its_container(
    documents: list[Document], tmp_path: Path
) -> None:
    if servers.missing(("redis",)):
        absent("redis-server", "PATH")
    [container] = [c for pod in pods(documents) for c in pod.containers if c["name"] == "redis"]
    [found] = [d for d in documents if title(d) == "ConfigMap/redis"]
    places = dict.fromkeys(("/etc/redis", "/run/redis", "/data"), str(tmp_path))
    configuration = _moved(found["data"]["redis.conf"], places)
    for name in ("lane.acl", "ray.acl"):
        (tmp_path / name).write_text(found["data"][name])
    (tmp_path / "redis.conf").write_text(f"{configuration}\nport 0\nunixsocket {tmp_path}/socket\n")

    server = subprocess.Popen(
        [_moved(word, places) for word in container["command"]],
        env={
            "PATH": os.environ["PATH"],
            "REDISCLI_AUTH": "secret",
            "LANE_PASSWORD": "secret-of-lane-jobs",
            "RAY_PASSWORD": "secret-of-ray",
            "MEMORY_LIMIT": str(4 * _GIB),
        },
        stdout=subprocess.DEVNULL,
    )
    try:
        bound = int(_asked(tmp_path / "socket", password="secret")["maxmemory"])
        refused = [
            _is_refused(tmp_path / "socket", *login)
            for login in (("lane", "secret-of-lane-jobs"), ("ray", "secret-of-ray"))
        ]
    finally:
        server.kill()
        server.wait()

    assert 2 * _GIB < bound < 3 * _GIB
    assert refused == [True, True]


def _moved(text: str, places: dict[str, str]) -> str:
    for place, other in places.items():
        text = text.replace(place, other)
    return text


def _asked(socket: Path, *, password: str) -> dict[str, Any]:
    until_it_listens = Retry(ConstantBackoff(0.1), 300)
    with redis.Redis(
        unix_socket_path=str(socket),
        password=password,
        retry=until_it_listens,
        retry_on_error=[redis.ConnectionError],
    ) as client:
        answer: dict[str, Any] = client.config_get("maxmemory")
        return answer


def _is_refused(socket: Path, user: str, password: str) -> bool:
    """Whether the user gets in, and may not read what gateway and dispatcher keep."""
    with redis.Redis(unix_socket_path=str(socket), username=user, password=password) as client:
        assert client.ping()
        try:
            client.hgetall("{batchyard}:keys")
        except redis.exceptions.NoPermissionError:
            return True
    return False
