"""A Ray cluster of one node as a child process, on ports of its own, closed by a token."""

import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import httpx
import psutil

from cli.servers import Child, Ports
from cli.servers.ports import is_free
from cli.servers.process import RUN_DIR_VARIABLE, wait_ready
from shared.errors import SetupError

#: Logical cores: Ray refuses to start what it has no core for, and most of our processes wait.
_LOGICAL_CPUS = 16
_OBJECT_STORE_BYTES = 512 * 1024 * 1024
_NICENESS = "5"
_END_SECONDS = 20.0
#: Ray would listen on every network of the machine, and show its numbers to whoever asks.
_CLOSED = {
    # Ray replaces 127.0.0.1 by the machine's own address unless this machine is its whole cluster.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Ray's numbers have no password. Where a port cannot be switched off, none has this number.
    "RAY_enable_metrics_collection": "0",
    "DASHBOARD_METRIC_PORT": "-1",
    # What torch listens on, between the processes of one engine.
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
}
_PORTS = (
    "port",
    "node-manager-port",
    "object-manager-port",
    "dashboard-port",
    "dashboard-agent-listen-port",
    "dashboard-agent-grpc-port",
    "runtime-env-agent-port",
    "ray-client-server-port",
)


class RayNode:
    """`ray start --head --block`: the head, and the only node."""

    def __init__(self, run_dir: Path, token: str, environment: Mapping[str, str]) -> None:
        self._run_dir = run_dir
        self._ports = Ports(run_dir)
        self._token = token
        # Socket paths inside may be 107 bytes long: the folder is not in the run directory.
        digest = hashlib.sha256(str(run_dir.resolve()).encode()).hexdigest()[:8]
        self._private = Path(tempfile.gettempdir()) / f"batchyard-{digest}"
        # Ray lets everybody write into its folder.
        self._folder = self._private / "ray"
        self.environment = {
            **environment,
            **_CLOSED,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": token,
            "RAY_ADDRESS": f"127.0.0.1:{self._port('port')}",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
            # Jobs say `python`: it must be the one with our packages.
            "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
            # Newer S3 clients send checksums in trailers, which older servers refuse.
            "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
            "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
        }
        self.child = Child("ray", self._command(), run_dir, environment=self.environment)

    @property
    def address(self) -> str:
        """Where Ray's job API answers."""
        return f"http://127.0.0.1:{self._port('dashboard-port')}"

    def launch(self) -> None:
        """Start it, after ending what an earlier one of this run directory left."""
        self._end_marked()
        # Ray keeps every session's logs for ever; the last one is enough.
        shutil.rmtree(self._private, ignore_errors=True)
        try:
            self._private.mkdir(mode=0o700)
        except FileExistsError as error:
            raise SetupError(
                f"{self._private} belongs to somebody else. Delete it, or set TMPDIR."
            ) from error
        self._wait_for_ports()
        self.child.start()

    def wait(self, timeout_seconds: float = 180.0) -> None:
        """Return when jobs can be submitted."""
        wait_ready(self._answers, [self.child], timeout_seconds=timeout_seconds)
        # Where the kernel shares the cores between sessions first, it forgets that Ray's workers
        # are nice. From here on all of Ray yields to what feeds it; its own start has a time limit.
        with suppress(OSError):
            Path(f"/proc/{self.child.pid}/autogroup").write_text(_NICENESS)

    def stop(self) -> None:
        """End it with all its workers; its logs move into the run directory.

        Ray keeps nothing that outlives it, and its orderly end takes longer than our patience.
        """
        self.child.kill()
        self._end_marked()
        logs = self._folder / "session_latest" / "logs"
        if logs.is_dir():
            kept = self._run_dir / "ray-logs"
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(logs, kept, symlinks=True, ignore_dangling_symlinks=True)
        shutil.rmtree(self._private, ignore_errors=True)

    def job_log(self, job: str) -> str:
        """What a Ray job has printed so far."""
        return (self._folder / "session_latest" / "logs" / f"job-driver-{job}.log").read_text()

    def _command(self) -> list[str]:
        ports = [f"--{name}={self._port(name)}" for name in _PORTS]
        return [
            str(Path(sys.executable).parent / "ray"),
            "start",
            "--head",
            "--block",
            "--node-ip-address=127.0.0.1",
            "--dashboard-host=127.0.0.1",
            f"--num-cpus={_LOGICAL_CPUS}",
            f"--object-store-memory={_OBJECT_STORE_BYTES}",
            f"--temp-dir={self._folder}",
            "--disable-usage-stats",
            # It asks for more machines, of which there are none, and shows numbers besides.
            "--no-monitor",
            # Any free port; the fixed range of ten thousand collides with ports that we chose.
            "--min-worker-port=0",
            "--max-worker-port=0",
            *ports,
        ]

    def _wait_for_ports(self) -> None:
        """Return when all are free: Ray's agents end a little later than what they belong to."""
        deadline = time.monotonic() + _END_SECONDS
        while not all(is_free(self._port(name)) for name in _PORTS) and time.monotonic() < deadline:
            time.sleep(0.05)
        self._ports.require_free(*(f"ray-{name}" for name in _PORTS))

    def _port(self, name: str) -> int:
        return self._ports.get(f"ray-{name}")

    def _answers(self) -> bool:
        agent = f"http://127.0.0.1:{self._port('dashboard-agent-listen-port')}"
        # The API answers long before the node is there that runs what it takes.
        return self._is_well(f"{self.address}/api/jobs/") and self._is_well(
            f"{agent}/api/local_raylet_healthz"
        )

    def _is_well(self, url: str) -> bool:
        try:
            answer = httpx.get(url, headers={"Authorization": f"Bearer {self._token}"}, timeout=5)
        except httpx.HTTPError:
            return False
        return answer.is_success

    def _end_marked(self) -> None:
        """Kill Ray's processes of this run directory: they leave the session of their parent."""
        for process in psutil.process_iter():
            try:
                environment = process.environ()
                is_ours = environment.get(RUN_DIR_VARIABLE) == str(self._run_dir.resolve())
                if is_ours and environment.get("RAY_AUTH_TOKEN") == self._token:
                    process.kill()
            except psutil.Error:
                continue
