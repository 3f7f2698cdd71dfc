"""Where the tests' servers come from: named by TEST_* variables, else private, else containers.

A test that needs a server that is nowhere is skipped, and fails where the variable CI is set.
"""

import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

from cli import servers
from shared.bus.topology import Bounds, User
from shared.storage import Storage

#: The broker user that our own processes are.
SERVICE = User("batchyard", secrets.token_urlsafe(16), tenant=False)
#: For tests that bound nothing: each may use queues of new names.
UNBOUNDED = Bounds(connections=10_000, channels=100_000, queues=None)
#: A tenant's broker user.
TENANT = User("acme", secrets.token_urlsafe(16), tenant=True, bounds=UNBOUNDED)


class S3(NamedTuple):
    """An S3 server and a user of it who may make buckets."""

    endpoint: str
    access_key: str
    secret_key: str


def storage_of(environment: Mapping[str, str]) -> Storage:
    """The bucket of processes with these settings."""
    names = ("ENDPOINT", "ACCESS_KEY", "SECRET_KEY", "BUCKET")
    return Storage(*(environment[f"BATCHYARD_S3_{name}"] for name in names))


@contextmanager
def some_redis(run_dir: Path) -> Iterator[str]:
    """The URL of a Redis."""
    if url := os.environ.get("TEST_REDIS_URL"):
        yield url
    elif not servers.missing(("redis",)):
        with own_redis(run_dir) as server:
            yield server.url
    elif _docker_answers():
        from testcontainers.redis import RedisContainer

        with RedisContainer("redis:8") as container:
            host = container.get_container_host_ip()
            yield f"redis://{host}:{container.get_exposed_port(6379)}/0"
    else:
        absent("Redis", "TEST_REDIS_URL")


@contextmanager
def some_rabbitmq(run_dir: Path) -> Iterator[str]:
    """The URL of a RabbitMQ, with the login of a user who may do everything."""
    if url := os.environ.get("TEST_AMQP_URL"):
        yield url
    elif not servers.missing(("rabbitmq",)):
        with own_rabbitmq(run_dir) as server:
            yield server.url(SERVICE)
    elif _docker_answers():
        from testcontainers.rabbitmq import RabbitMqContainer

        with RabbitMqContainer("rabbitmq:4") as container:
            host = container.get_container_host_ip()
            yield f"amqp://guest:guest@{host}:{container.get_exposed_port(5672)}/"
    else:
        absent("RabbitMQ", "TEST_AMQP_URL")


@contextmanager
def some_s3(run_dir: Path) -> Iterator[S3]:
    """An S3 that honours create-only puts."""
    if endpoint := os.environ.get("TEST_S3_ENDPOINT"):
        yield S3(endpoint, os.environ["TEST_S3_ACCESS_KEY"], os.environ["TEST_S3_SECRET_KEY"])
    elif not servers.missing(("ceph",)):
        keys = secrets.token_hex(10), secrets.token_hex(20)
        server = servers.CephS3(run_dir, *keys)
        try:
            server.start()
            yield S3(server.endpoint, *keys)
        finally:
            server.kill()
    elif _docker_answers():
        from testcontainers.minio import MinioContainer

        with MinioContainer("minio/minio:RELEASE.2025-09-07T16-13-09Z") as container:
            host = container.get_container_host_ip()
            endpoint = f"http://{host}:{container.get_exposed_port(9000)}"
            yield S3(endpoint, container.access_key, container.secret_key)
    else:
        absent("S3", "TEST_S3_ENDPOINT")


@contextmanager
def own_redis(run_dir: Path) -> Iterator[servers.Redis]:
    """A Redis that the test may kill."""
    if servers.missing(("redis",)):
        absent("Redis's program", "PATH")
    server = servers.Redis(run_dir, secrets.token_urlsafe(16), secrets.token_urlsafe(16))
    try:
        server.start()
        yield server
    finally:
        server.kill()


@contextmanager
def own_rabbitmq(run_dir: Path) -> Iterator[servers.RabbitMQ]:
    """A RabbitMQ that the test may kill."""
    if servers.missing(("rabbitmq",)):
        absent("RabbitMQ's programs", "PATH")
    server = servers.RabbitMQ(run_dir, [SERVICE, TENANT])
    try:
        server.start()
        yield server
    finally:
        server.kill()


def absent(what: str, variable: str) -> NoReturn:
    """Skip the test loudly; where CI is set, fail it."""
    reason = f"NOT TESTED: there is no {what}. Name one by {variable}, or install its packages."
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def _docker_answers() -> bool:
    from docker import from_env
    from docker.errors import DockerException

    try:
        client = from_env(timeout=5)
        client.ping()
    except DockerException:
        return False
    client.close()
    return True
