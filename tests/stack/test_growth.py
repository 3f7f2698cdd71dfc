"""Live load brings engines, and engines bring machines, by Ray's own autoscaler; and back again.

A cluster of three containers of our image: a head, and as many machines of a pool as there is work.
"""

import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.models.tiny import make_tiny_chat_model
from shared.doors import Door
from tests.engine.calls import live_client
from tests.eventually import wait_until
from tests.k8s.rendering import ROOT
from tests.stack.engine import ContainerEngine, show
from tests.stack.growth.cloud import Cloud, served
from tests.stack.images import build

CHAT = "/v1/chat/completions"
_HEAD_TYPE, _TYPE = "head", "growing"
#: Without work, a machine goes after this.
_IDLE_MINUTES = 0.25
_GROWTH = Path(__file__).parent / "growth"
#: As compose.yaml has them.
_CLOSED = ("--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--tmpfs=/tmp:exec")
_STORE = "--object-store-memory=200000000"


class Cluster:
    """The containers of one run."""

    def __init__(self, engine: ContainerEngine, image: str, folder: Path) -> None:
        self._engine, self._image, self._folder = engine, image, folder
        self._name = f"growth{os.getpid()}"
        self._head = f"{self._name}-head"
        self._token = secrets.token_hex(32)
        self._model = make_tiny_chat_model(engine.folder / "models" / "tiny-chat")
        self.cloud = Cloud(self._make, self._remove)

    @contextmanager
    def running(self) -> Iterator[None]:
        """A head that has no machine yet."""
        self._engine.run("network", "create", self._name)
        try:
            gateway = "{{(index .IPAM.Config 0).Gateway}}"
            here = self._engine.ask("network", "inspect", f"--format={gateway}", self._name)
            with served(self.cloud, here) as url:
                self._start_head(url)
                yield
        finally:
            for name in {*self.cloud.machines, self._head}:
                self._remove(name)
            self._engine.run("network", "rm", self._name, check=False)

    def drive(self, part: str) -> dict[str, Any]:
        """What this part of `growth/drive.py` tells."""
        command = [self._engine.client, "exec", "-e", "PYTHONPATH=/checks", self._head]
        environment = {"DOCKER_HOST": self._engine.host} if self._engine.host else {}
        done = subprocess.run(
            [*command, "python", "-m", "tests.stack.growth.drive", part],
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        assert done.returncode == 0, self._logs()
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return told

    def kill_head(self) -> None:
        """As if its machine were gone."""
        self._engine.run("kill", self._head)

    def _start_head(self, cloud: str) -> None:
        config = self._folder / "config.yaml"
        config.write_text(yaml.safe_dump(_config(cloud)))
        mounts = [
            f"--volume={config}:/cluster/config.yaml:ro",
            f"--volume={_GROWTH / 'provider.py'}:/cluster/growth_provider.py:ro",
            *(f"--volume={ROOT / room}:/checks/{room}:ro" for room in ("tests", "cli")),
            "--env=PYTHONPATH=/cluster",
            "--env=AUTOSCALER_UPDATE_INTERVAL_S=1",
        ]
        address = self._run(
            self._head,
            mounts,
            *("--head", "--port=6379", "--num-cpus=0"),
            "--autoscaling-config=/cluster/config.yaml",
        )
        tags = {"ray-node-type": "head", "ray-user-node-type": _HEAD_TYPE}
        tags |= {"ray-node-name": self._head, "ray-node-status": "up-to-date"}
        self.cloud.add(self._head, address, tags)
        ready = ["exec", self._head, "ray", "status"]
        wait_until(lambda: self._engine.run(*ready, check=False).returncode == 0, timeout=300)

    def _make(self, name: str, node_type: str) -> str:
        assert node_type == _TYPE
        show(f"{name} is made")
        head = self.cloud.machines[self._head].address
        resources = """--resources={"card": 1}"""
        return self._run(name, [], f"--address={head}:6379", "--num-cpus=2", resources)

    def _run(self, name: str, options: list[str], *ray: str) -> str:
        """The address of a new container in which `ray start` runs with these arguments."""
        self._engine.run(
            *("run", "--detach", f"--name={self._container(name)}", f"--network={self._name}"),
            *_CLOSED,
            "--shm-size=512m",
            f"--volume={self._model}:/models/tiny:ro",
            *("--env=RAY_AUTH_MODE=token", f"--env=RAY_AUTH_TOKEN={self._token}"),
            *options,
            *(self._image, "ray", "start", "--block", _STORE, *ray),
        )
        address = "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}"
        return self._engine.ask("inspect", f"--format={address}", self._container(name))

    def _remove(self, name: str) -> None:
        show(f"{name} is removed")
        self._engine.run("rm", "--force", self._container(name), check=False)

    def _container(self, name: str) -> str:
        return name if name == self._head else f"{self._name}-{name}"

    def _logs(self) -> str:
        """What Ray's autoscaler says in the head."""
        with suppress(AssertionError):
            return self._engine.ask(
                *("exec", self._head, "sh", "-c"),
                "tail -n 60 /tmp/ray/session_latest/logs/monitor.*",
            )
        return "the head is gone"


@pytest.fixture
def cluster(engine: ContainerEngine, tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(engine, build(engine, "worker-cpu"), tmp_path)
    with cluster.running():
        yield cluster


def test_machines_follow_live_load_and_go_when_it_goes_and_no_row_is_killed(
    cluster: Cluster,
) -> None:
    story = cluster.drive("story")

    # Machines, and engines.
    assert story["at first"] == [0, 0]
    assert story["with a row"] == [1, 1]
    assert story["with live calls"] == [2, 2]
    assert story["with rows in both"] == [2, 2]
    assert story["after live calls"][1] == 1
    # The engine that went gave back what it had not begun, and none of its rows was lost.
    assert story["ends"] == ["UNSEEN", "done"]
    assert story["statuses"] == [200]
    less, whole = story["answered"]
    assert 0 < less < whole
    assert story["again"] == whole - less
    assert story["broken"] == []
    assert story["streams"] > 0
    assert story["at last"] == [0, 0]
    wait_until(lambda: len(cluster.cloud.done) == 4)
    assert sorted(cluster.cloud.done) == [
        *(("made", f"machine-{number}") for number in (1, 2)),
        *(("removed", f"machine-{number}") for number in (1, 2)),
    ]


async def test_without_rays_head_a_stream_goes_on_and_its_engine_takes_calls(
    cluster: Cluster,
) -> None:
    door = Door(**cluster.drive("door"))

    async with live_client(door) as client, client.stream("POST", CHAT, json=_body(900)) as stream:
        events = stream.aiter_lines()
        await anext(events)
        cluster.kill_head()
        rest = [event async for event in events if event]
        another = await client.post(CHAT, json=_body(2))

    assert rest[-1] == "data: [DONE]"
    assert json.loads(rest[-2][6:])["usage"]["completion_tokens"] == 900
    assert another.status_code == 200


def _body(tokens: int) -> dict[str, Any]:
    return {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Tell me about trains, please."}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _config(cloud: str) -> dict[str, Any]:
    """For Ray's autoscaler, as an operator gives it, with all of the fields that it reads."""
    return {
        "cluster_name": "growth",
        "max_workers": 2,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": _IDLE_MINUTES,
        "provider": {
            "type": "external",
            "module": "growth_provider.ContainerNodes",
            "cloud": cloud,
            "use_internal_ips": True,
            # As KubeRay has them: containers start by themselves, and drain before they go.
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "foreground_node_launch": True,
            "worker_liveness_check": False,
            "worker_rpc_drain": True,
        },
        "available_node_types": {
            _HEAD_TYPE: {"resources": {}, "node_config": {}, "min_workers": 0, "max_workers": 0},
            _TYPE: {
                "resources": {"CPU": 2, "card": 1},
                "node_config": {},
                "min_workers": 0,
                "max_workers": 2,
            },
        },
        "head_node_type": _HEAD_TYPE,
        **{key: {} for key in ("auth", "docker", "file_mounts", "head_node", "worker_nodes")},
        **{key: [] for key in _COMMANDS},
        "file_mounts_sync_continuously": False,
        "rsync_exclude": [],
        "rsync_filter": [],
    }


_COMMANDS = (
    "cluster_synced_files",
    "initialization_commands",
    "setup_commands",
    "head_setup_commands",
    "worker_setup_commands",
    "head_start_ray_commands",
    "worker_start_ray_commands",
)
