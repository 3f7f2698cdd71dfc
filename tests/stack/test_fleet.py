"""compose.yaml, unchanged and brought up: both doors, deaths, cut networks, an upgrade, its end."""

import asyncio
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai.types import Batch
from redis import Redis

from tests.containers.test_images import IMAGES
from tests.e2e.doors import gateway_gives, opened
from tests.eventually import wait_until
from tests.examples import assert_runs, examples
from tests.k8s.rendering import ROOT
from tests.stack.doors import BY_COMMAND, BY_PORT, GIVEN, doors
from tests.stack.engine import ContainerEngine, show
from tests.stack.images import VERSION, build
from tests.stack.stack import (
    CHAT,
    COLD_SECONDS,
    EMBED,
    Stack,
    assert_answered,
    assert_whole,
    bring_up,
    chat_lines,
    embedding_lines,
    has_begun,
    running,
)

_CPU = {"VLLM_CPU_KVCACHE_SPACE": "1"}
CATALOG: dict[str, Any] = {
    "pools": {"cpu": {"resources": {"CPU": 1}, "label_selector": {"pool": "cpu"}}},
    "models": {
        CHAT: {
            "source": f"/models/{CHAT}",
            "pools": ["cpu"],
            "live": {},
            "engine": {"max_model_len": 1024, "max_num_seqs": 64, "enforce_eager": True},
            "env": _CPU,
        },
        EMBED: {
            "source": f"/models/{EMBED}",
            "pools": ["cpu"],
            "live": {},
            "engine": {"runner": "pooling", "max_num_seqs": 128, "enforce_eager": True},
            "env": _CPU,
        },
    },
}
#: Enough for a death in the middle.
_ROWS = 600
_LONG_ROWS = 4000
_NOISE_BYTES = 1024 * 1024
_NEXT_VERSION, _NEXT_OPTION = "0.1.1", "--from-the-future 1"
README = {name: text for name, text in examples().items() if name.startswith("README")}


@pytest.fixture(scope="module")
def stack(
    engine: ContainerEngine, images: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    assert images
    with running(Stack(engine, tmp_path_factory.mktemp("stack"), CATALOG)) as stack:
        yield stack


@pytest.fixture(scope="module")
def warm(stack: Stack) -> Stack:
    """With engines that have answered."""
    batches = [
        stack.submit(chat_lines(1), "/v1/chat/completions"),
        stack.submit(embedding_lines(["hello"]), "/v1/embeddings"),
    ]
    assert_answered(stack, *batches)
    return stack


def test_nothing_is_open_to_the_network_and_only_s3_may_write_to_its_root(stack: Stack) -> None:
    for service in stack.services_named():
        found = stack.look(stack.container(service))
        ports = [
            port for ports in found["NetworkSettings"]["Ports"].values() for port in ports or ()
        ]

        assert {port["HostIp"] for port in ports} <= {"127.0.0.1"}
        assert found["HostConfig"]["ReadonlyRootfs"] is (service != "s3")
        assert found["HostConfig"]["CapDrop"] == ["ALL"]


def test_without_credentials_no_listening_socket_gives_anything(warm: Stack) -> None:
    if os.geteuid() != 0:
        pytest.skip("NOT TESTED: the sockets of containers are seen by root alone")
    tries = {
        "gateway:8000": gateway_gives(warm.base_url[:-3], warm.api_key),
        **BY_PORT,
        **BY_COMMAND,
    }
    found = list(doors(warm))

    assert [door for door in found if door.name not in tries] == []
    # Else it would have tried less than it seems to.
    assert tries.keys() == {door.name for door in found}

    def still() -> set[tuple[str, int, int]]:
        return {door.listener.identity for door in doors(warm)}

    assert asyncio.run(opened(found, tries, GIVEN, still)) == []


def test_a_batch_by_the_official_client(warm: Stack) -> None:
    batch = warm.ended(warm.submit(chat_lines(20), "/v1/chat/completions"))

    assert_whole(warm, batch, 20)


@pytest.mark.parametrize("example", README.values(), ids=README.keys())
def test_a_batch_by_each_door_as_readme_shows_it(warm: Stack, example: str, tmp_path: Path) -> None:
    assert_runs(example, warm.client_environment(), folder=tmp_path, timeout=300)


def test_the_demo_runs_on_the_fleet_in_containers(warm: Stack) -> None:
    shown = warm.run_in("gateway", "batchyard", "demo", "--here")

    assert "The tickets nearest in meaning" in shown
    assert "300/300" in shown


@pytest.mark.parametrize(
    "service", ["gateway", "dispatcher", "redis", "rabbitmq", "s3", "worker", "ray-head"]
)
def test_a_container_that_dies_comes_back_and_nothing_is_lost(warm: Stack, service: str) -> None:
    batch = warm.submit(chat_lines(_ROWS, tokens=32), "/v1/chat/completions")
    warm.until(batch, has_begun)

    warm.crash(service)
    ended = warm.ended(batch)

    assert_whole(warm, ended, _ROWS)
    warm.wait_well()


@pytest.mark.parametrize("service", ["redis", "s3", "rabbitmq"])
def test_a_server_that_cannot_be_reached_is_named_and_work_goes_on_afterwards(
    warm: Stack, service: str
) -> None:
    batch = warm.submit(chat_lines(_ROWS, tokens=32), "/v1/chat/completions")
    warm.until(batch, has_begun)

    with warm.cut_off(service):
        wait_until(lambda: _report(warm).get(service) == "does not answer", timeout=COLD_SECONDS)

    assert_whole(warm, warm.ended(batch), _ROWS)
    warm.wait_well()


def test_a_machine_that_is_cut_off_is_replaced_by_itself(warm: Stack) -> None:
    batch = warm.submit(chat_lines(_ROWS, tokens=32), "/v1/chat/completions")
    warm.until(batch, has_begun)
    before = warm.look(warm.container("worker"))["State"]["StartedAt"]

    # Ray gives it up, and it ends itself when it finds that out.
    with warm.cut_off("worker"):
        wait_until(lambda: _alive_nodes(warm) == 1, timeout=COLD_SECONDS)
    wait_until(
        lambda: warm.look(warm.container("worker"))["State"]["StartedAt"] != before, timeout=180
    )
    ended = warm.ended(batch)

    assert_whole(warm, ended, _ROWS)
    warm.wait_well()


def test_upgrade_and_rollback_lose_no_running_batch(
    warm: Stack, engine: ContainerEngine, tmp_path: Path
) -> None:
    context = tmp_path / "next"
    shutil.copytree(ROOT, context, ignore=_but_what_images_are_made_of)
    _replace(context / "pyproject.toml", f'"{VERSION}"', f'"{_NEXT_VERSION}"')
    # What the next dispatcher tells lane jobs, and the workers of before have never heard of.
    _replace(context / "dispatcher/lanes.py", "--job {job}", f"--job {{job}} {_NEXT_OPTION}")
    for name in ("gateway", "dispatcher", "worker-cpu"):
        before = _layers(engine, f"batchyard/{name}:{VERSION}")
        after = _layers(engine, build(engine, name, version=_NEXT_VERSION, context=context))
        # What a machine has to pull for a new version is our own code.
        assert len(set(after) - set(before)) == 1

    _upgrade(warm, _NEXT_VERSION)
    _replace_the_cluster(warm, VERSION)
    # Whatever was done before: this one runs in the new cluster.
    assert_answered(warm, warm.submit(chat_lines(1), "/v1/chat/completions"))
    assert "lane_job.newer_dispatcher" in _said_by_lane_jobs(warm)
    _replace_the_cluster(warm, _NEXT_VERSION)
    _upgrade(warm, VERSION)


def test_a_fleet_that_was_backed_up_as_documented_goes_on_from_its_archives(
    warm: Stack, tmp_path: Path
) -> None:
    copy_redis, copy_s3, restore, *_ = _documented("## Backup and restore")
    done = warm.ended(warm.submit(chat_lines(20), "/v1/chat/completions"))
    kept = warm.results(done)
    under_way = warm.submit(chat_lines(_LONG_ROWS, tokens=48), "/v1/chat/completions")
    warm.until(under_way, has_begun)

    with _much_written(warm):
        warm.run_documented(copy_redis, tmp_path)
    warm.run_documented(copy_s3, tmp_path)
    warm.down()
    *commands, last = restore.splitlines()
    assert last == "docker compose up --wait"
    warm.run_documented("\n".join(commands), tmp_path)
    bring_up(warm)

    assert warm.results(warm.client.batches.retrieve(done.id)) == kept
    assert_whole(warm, warm.ended(under_way), _LONG_ROWS)


def test_nothing_is_left_after_down(stack: Stack, engine: ContainerEngine) -> None:
    stack.down()

    project = f"--filter=label=com.docker.compose.project={stack.project}"
    for what in ("container", "network", "volume"):
        names = engine.ask(what, "ls", "-q", *(["-a"] if what == "container" else []), project)
        assert names == "", what


@contextmanager
def _much_written(stack: Stack) -> Iterator[None]:
    """Redis's log grows at every moment, as that of a fleet with much more work."""
    ended = threading.Event()

    def write() -> None:
        with Redis.from_url(stack.redis_url()) as redis:
            while not ended.is_set():
                redis.set("noise", os.urandom(_NOISE_BYTES))
            redis.delete("noise")

    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(write)
        try:
            yield
        finally:
            ended.set()
        writing.result()


def _upgrade(stack: Stack, version: str) -> None:
    """Gateway and dispatcher, in the middle of a batch, and small ones sent meanwhile."""
    with _a_batch_that_loses_nothing(stack):
        began = time.monotonic()
        stack.up("--no-build", "--no-deps", "gateway", "dispatcher", TAG=version)
        sent = [stack.submit(chat_lines(10), "/v1/chat/completions") for _ in range(5)]
        show(f"{version} took its first batches after {time.monotonic() - began:.0f} s")
        stack.wait_well("gateway", "dispatcher")
        for service in ("gateway", "dispatcher"):
            assert _version(stack, service) == version
    for batch in sent:
        assert_whole(stack, stack.ended(batch), 10)


def _replace_the_cluster(stack: Stack, version: str) -> None:
    """The way to new workers: all of Ray at once."""
    with _a_batch_that_loses_nothing(stack):
        stack.up("--no-build", "--no-deps", "--force-recreate", "ray-head", "worker", TAG=version)
    stack.wait_well("ray-head", "worker")
    assert _version(stack, "worker") == version


def _layers(engine: ContainerEngine, image: str) -> list[str]:
    layers: list[str] = json.loads(
        engine.ask("image", "inspect", "--format={{json .RootFS.Layers}}", image)
    )
    return layers


@contextmanager
def _a_batch_that_loses_nothing(stack: Stack) -> Iterator[None]:
    """It is under way when the block begins; what it had committed by then is not run again."""
    batch = stack.submit(chat_lines(_LONG_ROWS, tokens=48), "/v1/chat/completions")
    stack.until(batch, has_begun)
    wait_until(lambda: bool(asyncio.run(_epochs(stack, batch))), timeout=COLD_SECONDS)
    committed = asyncio.run(_epochs(stack, batch))
    yield
    assert_whole(stack, stack.ended(batch), _LONG_ROWS)
    again = asyncio.run(_epochs(stack, batch))
    assert {index: again[index] for index in committed} == committed


def _said_by_lane_jobs(stack: Stack) -> str:
    command = "cat /tmp/ray/session_latest/logs/job-driver-lane-*"
    return stack.run_in("ray-head", "sh", "-c", command)


def _replace(file: Path, old: str, new: str) -> None:
    """The one match."""
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))


def _report(stack: Stack) -> dict[str, str]:
    """The gateway's own words about the servers; none while it has no time for them."""
    try:
        report: dict[str, str] = httpx.get(f"{stack.base_url[:-3]}/readyz", timeout=30).json()
    except httpx.HTTPError:
        return {}
    return report


def _alive_nodes(stack: Stack) -> int:
    """As the head sees them."""
    count = "sum(node['Alive'] for node in ray.nodes())"
    code = f"import ray; ray.init('auto'); print('ALIVE', {count}, flush=True)"
    # Ray also logs to the same stream.
    found = re.search(r"ALIVE (\d+)", stack.run_in("ray-head", "python", "-c", code))
    assert found is not None
    return int(found[1])


def _documented(heading: str) -> list[str]:
    """The blocks of commands of a chapter of docs/operations.md."""
    page = (ROOT / "docs/operations.md").read_text()
    chapter = page.partition(f"\n{heading}\n")[2].partition("\n## ")[0]
    return re.findall(r"^```\n(.*?)\n```$", chapter, flags=re.MULTILINE | re.DOTALL)


def _version(stack: Stack, service: str) -> str:
    code = "from importlib.metadata import version; print(version('batchyard'))"
    return stack.run_in(service, "python", "-c", code)


def _but_what_images_are_made_of(folder: str, names: list[str]) -> list[str]:
    """What stays behind when the tree is copied."""
    if Path(folder) != ROOT:
        return [name for name in names if name == "__pycache__"]
    kept = {"pyproject.toml", "README.md", ".dockerignore", "locks", *IMAGES["gateway"].rooms}
    return [name for name in names if name not in kept | {"dispatcher", "worker"}]


async def _epochs(stack: Stack, batch: Batch) -> dict[int, int]:
    """How often each slice was claimed that is committed by now."""
    state = stack.state()
    parts, epochs = await state.slices.parts(batch.id), await state.slices.epochs(batch.id)
    await state.close()
    return {index: epochs[index] for index in parts}
