"""Real servers, started here: skipped where their programs are absent, but failed on in CI."""

import os
from collections.abc import Callable

import psutil
import pytest

from cli.servers import missing
from tests.processes import connections


def _require(server: str) -> None:
    packages = missing([server])
    if packages and os.environ.get("CI"):
        pytest.fail(f"{server} must be there in CI; missing: {packages}")
    if packages:
        pytest.skip(f"{server} is not on this machine; missing: {packages}")


@pytest.fixture(scope="session")
def needs_rabbitmq() -> None:
    _require("rabbitmq")


@pytest.fixture(scope="session")
def needs_redis() -> None:
    _require("redis")


@pytest.fixture(scope="session")
def needs_ceph() -> None:
    _require("ceph")


@pytest.fixture
def listening_addresses() -> Callable[[int], set[str]]:
    """The addresses on which a process and its children accept connections."""

    def addresses(pid: int) -> set[str]:
        leader = psutil.Process(pid)
        return {
            connection.laddr.ip
            for process in [leader, *leader.children(recursive=True)]
            for connection in connections(process)
            if connection.status == psutil.CONN_LISTEN
        }

    return addresses
