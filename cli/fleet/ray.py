"""A Ray cluster of one node as a child process, on its own ports, protected by a token."""

import hashlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from cli.servers import Child, Ports
from cli.servers.http import is_well
from cli.servers.ports import is_free
from cli.servers.process import RUN_DIR_VARIABLE, make_private_directory, wait_ready
from shared.errors import SetupError

#: Logical cores: Ray starts nothing without a free core, and most of our processes only wait.
_LOGICAL_CPUS = 16
_OBJECT_STORE_BYTES = 512 * 1024 * 1024
_NICENESS = "5"
_END_SECONDS = 20.0
#: How often a start that Ray itself gives up is tried.
_STARTS = 3
#: By default Ray listens on every network interface, and serves its metrics without a password.
_CLOSED = {
    # Ray replaces 127.0.0.1 by the machine's own address unless this machine is its whole cluster.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # Ray's metrics have no password. Where a port cannot be switched off, -1 is no port.
    "RAY_enable_metrics_collection": "0",
    "DASHBOARD_METRIC_PORT": "-1",
    # What torch listens on, between the processes of one engine.
    "GLOO_SOCKET_IFNAME": "lo",
    "NCCL_SOCKET_IFNAME": "lo",
}
#: What Ray writes about itself and its processes, for each of them.
_ROTATION = {"RAY_ROTATION_MAX_BYTES": str(16 * 1024**2), "RAY_ROTATION_BACKUP_COUNT": "2"}
#: What compilers keep for the next start, by the variable that says where.
_CACHES = {
    "VLLM_CACHE_ROOT": "vllm",
    "TORCHINDUCTOR_CACHE_DIR": "torchinductor",
    "TRITON_CACHE_DIR": "triton",
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
        #: Everything that Ray and its jobs log; it stays after the end.
        self.logs = run_dir / "ray-logs"
        # Ray lets everybody write into its folder, so ours around it is private.
        self._private = run_dir / "ray"
        self._files = self._private / "tmp"
        # A socket's path may have 107 bytes, and a run directory's may have more: Ray is given a
        # short path that leads there.
        digest = hashlib.sha256(str(run_dir.resolve()).encode()).hexdigest()[:8]
        self._short = Path(tempfile.gettempdir()) / f"batchyard-{digest}"
        caches = run_dir.resolve() / "caches"
        self.environment = {
            **environment,
            # PyTorch writes its own default into the environment of whoever imports it.
            **{name: str(caches / folder) for name, folder in _CACHES.items()},
            **_CLOSED,
            **_ROTATION,
            # vLLM and others leave files there; they go with Ray.
            "TMPDIR": str(self._short / "tmp"),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": token,
            "RAY_ADDRESS": f"127.0.0.1:{self._port('port')}",
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
            # Jobs run `python`: it has to be the one with our packages.
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
        # Ray keeps every session's logs forever; the last one is enough.
        shutil.rmtree(self._private, ignore_errors=True)
        make_private_directory(self._private)
        self._files.mkdir()
        (self._private / "scratch").mkdir()
        self._make_short_path()
        self._link_logs()
        self._wait_for_ports()
        self.child.start()

    def wait(self, timeout_seconds: float = 180.0) -> None:
        """Return when jobs can be submitted.

        Ray gives a start up when its node has not registered within 30 seconds, which a busy
        machine may need: it is started again. Raises SetupError when that does not help.
        """
        for left in reversed(range(_STARTS)):
            try:
                wait_ready(self._answers, [self.child], timeout_seconds=timeout_seconds)
                break
            except SetupError:
                if self.child.is_alive() or not left:
                    raise
            self.launch()
        self._link_logs_to_session()
        # Where the kernel divides the cores between sessions first, the niceness of Ray's workers
        # counts for nothing. From here on all of Ray yields to the processes that feed it; its own
        # start has a time limit.
        with suppress(OSError):
            Path(f"/proc/{self.child.pid}/autogroup").write_text(_NICENESS)

    def stop(self) -> None:
        """End it with all its workers; only its logs stay.

        Ray keeps nothing that outlives it, and its orderly end takes longer than our patience.
        """
        self.child.kill()
        self._end_marked()
        # Also after a start that failed.
        self._link_logs_to_session()
        (self._files / "session_latest").unlink(missing_ok=True)
        shutil.rmtree(self._short, ignore_errors=True)
        shutil.rmtree(self._private / "scratch", ignore_errors=True)
        for entry in self._files.glob("session_*/*"):
            if entry.name != "logs" and entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)

    def job_log(self, job: str) -> str:
        """What a Ray job has printed so far."""
        return (self.logs / f"job-driver-{job}.log").read_text()

    def _make_short_path(self) -> None:
        shutil.rmtree(self._short, ignore_errors=True)
        try:
            self._short.mkdir(mode=0o700)
        except FileExistsError as error:
            raise SetupError(
                f"{self._short} belongs to another user. Delete it, or set TMPDIR."
            ) from error
        (self._short / "ray").symlink_to(self._files.resolve())
        (self._short / "tmp").symlink_to((self._private / "scratch").resolve())

    def _link_logs_to_session(self) -> None:
        """Let the logs be found without Ray's own link to its latest session.

        It leads over the short path, and Ray makes it again with each worker: for a moment, none is
        there.
        """
        if sessions := sorted(self._files.glob("session_2*")):
            self._link_logs(sessions[-1].name)

    def _link_logs(self, session: str = "session_latest") -> None:
        if self.logs.is_dir() and not self.logs.is_symlink():
            shutil.rmtree(self.logs)
        link = self._private / "logs"
        link.unlink(missing_ok=True)
        link.symlink_to(Path("ray", "tmp", session, "logs"))
        link.replace(self.logs)

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
            # Waves run where it is: the node's lane jobs have logins for Redis and S3.
            '--resources={"stores": 1000}',
            f"--object-store-memory={_OBJECT_STORE_BYTES}",
            f"--temp-dir={self._short / 'ray'}",
            "--disable-usage-stats",
            # The autoscaler's monitor; there are no more machines, and it would publish metrics.
            "--no-monitor",
            # Any free port; the fixed range of ten thousand collides with ports that we chose.
            "--min-worker-port=0",
            "--max-worker-port=0",
            *ports,
        ]

    def _wait_for_ports(self) -> None:
        """Return when all are free: Ray's agents end a little later than the node itself."""
        deadline = time.monotonic() + _END_SECONDS
        while not all(is_free(self._port(name)) for name in _PORTS) and time.monotonic() < deadline:
            time.sleep(0.05)
        self._ports.require_free(*(f"ray-{name}" for name in _PORTS))

    def _port(self, name: str) -> int:
        return self._ports.get(f"ray-{name}")

    def _answers(self) -> bool:
        agent = f"http://127.0.0.1:{self._port('dashboard-agent-listen-port')}"
        # The API answers long before there is a node to run what it accepts.
        urls = f"{self.address}/api/jobs/", f"{agent}/api/local_raylet_healthz"
        headers = {"Authorization": f"Bearer {self._token}"}
        return all(is_well(url, headers) for url in urls)

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
