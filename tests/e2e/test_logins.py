"""No process holds a login that it does not need, in its environment or on its command line."""

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil

from cli.fleet.catalog import CHAT_MODEL
from tests.e2e.conftest import RunningFleet, chat_lines
from tests.processes import variable

_SERVICE = frozenset({"service_password", "redis_password", "s3_access_key", "s3_secret_key"})
_RAYS = frozenset({"ray_token"})
#: What each kind of process holds, by the names of `Credentials`.
_HELD = {
    # The salts of live calls.
    "gateway": _SERVICE | {"cache_secret"},
    "dispatcher": _SERVICE | _RAYS,
    "server": frozenset(),
    "ray": _RAYS,
    "controller": _RAYS,
    "engine": _RAYS,
    "engine core": frozenset(),
    "fork server": frozenset(),
    "lane job": _RAYS,
    "wave": _RAYS,
}
#: By a part of their command lines; the first that fits. All others are Ray's, or its helpers.
_KINDS = {
    **dict.fromkeys(
        ("redis-server", "rabbitmq", "epmd", "erl_child", "inet_gethost", "ceph-", "radosgw"),
        "server",
    ),
    "-m gateway": "gateway",
    "-m dispatcher": "dispatcher",
    "-m worker lane": "lane job",
    "VLLM::EngineCore": "engine core",
    "-m worker.fork_server": "fork server",
    ":engine": "engine",
    "ServeController": "controller",
    "SliceMapper": "wave",
    "MapWorker": "wave",
}
_SECONDS = 300


def test_each_process_holds_only_the_logins_that_it_needs(
    warm_chat: RunningFleet, warm_embeddings: RunningFleet
) -> None:
    assert warm_chat is warm_embeddings
    # Enough rows for a wave.
    batch = warm_chat.submit(chat_lines(2000), "/v1/chat/completions")
    held: dict[str, set[str]] = {}
    deadline = time.monotonic() + _SECONDS

    while held.keys() < _HELD.keys() and time.monotonic() < deadline:
        for kind, names in _held(warm_chat):
            held.setdefault(kind, set()).update(names)

    warm_chat.client.batches.cancel(batch.id)
    assert held == _HELD


def test_rays_records_of_jobs_hold_no_login(warm_chat: RunningFleet) -> None:
    token = warm_chat.credentials.ray_token
    answer = httpx.get(
        f"{warm_chat.ray_address}/api/jobs/", headers={"authorization": f"Bearer {token}"}
    )

    assert CHAT_MODEL in answer.text
    assert not [name for name, secret in _secrets(warm_chat) if secret in answer.text]


def _held(fleet: RunningFleet) -> Iterator[tuple[str, set[str]]]:
    """The kind of each process of the fleet, and whose logins it has."""
    for process in _processes(fleet):
        try:
            folder = Path(f"/proc/{process.pid}")
            command = (folder / "cmdline").read_bytes()
            known = (folder / "environ").read_bytes() + command
        except OSError:
            continue
        names = {name for name, secret in _secrets(fleet) if secret.encode() in known}
        yield _kind(command.replace(b"\0", b" ").decode(errors="replace")), names


def _processes(fleet: RunningFleet) -> Iterator[psutil.Process]:
    for pid in fleet.pids:
        process = psutil.Process(pid)
        yield process
        yield from process.children(recursive=True)
    # Those whose parents have ended.
    for process in psutil.process_iter():
        if variable(process, "RAY_AUTH_TOKEN") == fleet.credentials.ray_token:
            yield process


def _secrets(fleet: RunningFleet) -> Iterator[tuple[str, str]]:
    yield from fleet.credentials._asdict().items()


def _kind(command: str) -> str:
    return next((kind for part, kind in _KINDS.items() if part in command), "ray")
