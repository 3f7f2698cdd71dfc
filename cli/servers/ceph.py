"""A private S3: one Ceph monitor, one storage daemon and one gateway, on loopback, data on disk.

Ceph's own keys (cephx) are required between the daemons too; they cost nothing measurable.
"""

import base64
import hashlib
import http.client
import json
import os
import shutil
import struct
import subprocess
import time
import uuid
from pathlib import Path

from cli.servers.ports import Ports
from cli.servers.process import (
    Child,
    make_private_directory,
    wait_ready,
    write_private_file,
)
from shared.errors import SetupError

_USER = "batchyard"
_GATEWAY_GRACE_SECONDS = 1.0
_OWNERS = {
    "mon.": {"mon": "allow *"},
    "client.admin": {"mon": "allow *", "osd": "allow *"},
    "osd.0": {"mon": "allow profile osd", "osd": "allow *"},
    "client.rgw": {"mon": "allow rw", "osd": "allow rwx"},
}
_CONFIGURATION = """\
[global]
fsid = {cluster}
mon_initial_members = a
mon_host = [v2:127.0.0.1:{monitor_port}/0]
ms_bind_msgr1 = false
public_network = 127.0.0.0/8
auth_cluster_required = cephx
auth_service_required = cephx
auth_client_required = cephx
keyring = {directory}/keyring
run_dir = {directory}
crash_dir = {directory}
# Empty: a socket's path is limited to 107 bytes, and a run directory's is not.
admin_socket =
pid_file =
log_file =
log_to_stderr = true
err_to_stderr = true
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 8
osd_pool_default_pgp_num = 8
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_warn_on_pool_no_redundancy = false
mon_max_pg_per_osd = 2000
mon_data_avail_warn = 3
mon_data_avail_crit = 1
# Days instead of 16 s. A storage daemon on its own that was paused for longer than its read lease
# keeps back what was asked meanwhile for ever: only another daemon's answer would wake it.
osd_pool_default_read_lease_ratio = 50000
mon_min_osdmap_epochs = 50
# Four waits meant for clusters of many machines; each costs seconds at every start here:
# a vote gathers proposals, a client looks for another monitor, an operation waits for a new map
# after the storage daemon came back, and closing the disk waits for one poll.
paxos_propose_interval = 0.02
paxos_min_wait = 0.01
mon_client_hunt_interval = 0.3
mon_client_hunt_interval_backoff = 1.0
objecter_tick_interval = 0.5
objecter_timeout = 1
bdev_aio_poll_ms = 20
# Seconds. Until a killed gateway's watch ends, each new bucket or user waits for its answer.
osd_client_watch_timeout = 5
[mon.a]
mon_data = {directory}/mon
[osd]
osd_data = {directory}/osd
osd_objectstore = bluestore
# Bytes; the file is sparse.
bluestore_block_size = 21474836480
bluestore_block_db_create = false
bluestore_block_wal_create = false
osd_memory_target = 939524096
osd_max_object_name_len = 256
osd_max_object_namespace_len = 64
[client.rgw]
rgw_frontends = beast endpoint=127.0.0.1:{gateway_port} tcp_nodelay=1
rgw_data = {directory}/rgw
# Without Swift, the administrator's calls and others that nobody here makes.
rgw_enable_apis = s3
rgw_thread_pool_size = 64
rgw_enable_usage_log = false
rgw_run_sync_thread = false
rgw_gc_obj_min_wait = 60
"""


class CephS3:
    """One S3 endpoint with its data in `<run_dir>/ceph` and one user, who may create buckets."""

    def __init__(self, run_dir: Path, access_key: str, secret_key: str) -> None:
        if not access_key or not secret_key:
            raise SetupError("S3 needs an access key and a secret key; neither may be empty.")
        self._keys = {"access_key": access_key, "secret_key": secret_key}
        self._ports = Ports(run_dir)
        self._directory = (run_dir / "ceph").resolve()
        own = ["-c", str(self._directory / "ceph.conf"), "-f"]
        self._monitor = Child("ceph-mon", ["ceph-mon", *own, "-i", "a"], run_dir)
        self._storage = Child("ceph-osd", ["ceph-osd", *own, "-i", "0"], run_dir)
        self._gateway = Child("ceph-s3", ["radosgw", *own, "-n", "client.rgw"], run_dir)

    @property
    def endpoint(self) -> str:
        """The address, `http://host:port`."""
        return f"http://127.0.0.1:{self._ports.get('s3')}"

    @property
    def children(self) -> tuple[Child, Child, Child]:
        """Monitor, storage daemon and gateway: the order of their start."""
        return (self._monitor, self._storage, self._gateway)

    def start(self, timeout_seconds: float = 120.0) -> None:
        """Start, create everything the first time, and wait until S3 is served."""
        self.launch()
        self.wait(timeout_seconds)

    def launch(self) -> None:
        """Start without waiting for the gateway. Main thread only (see `Child.start`)."""
        for child in self.children:
            child.end_stale()
        if not any(child.is_alive() for child in self.children):
            self._ports.require_free("ceph-mon", "s3")
        self._prepare()
        for child in self.children:
            child.start()

    def wait(self, timeout_seconds: float = 120.0) -> None:
        """Wait until S3 is served and the user holds the keys given."""
        wait_ready(self._is_served, self.children, timeout_seconds=timeout_seconds)
        self._put_user()

    def stop(self, grace_seconds: float = 30.0) -> None:
        """End it in order: gateway, storage, monitor (the storage daemon takes leave of it)."""
        # The gateway holds nothing, and often waits half a minute for an answer to its farewell.
        self._gateway.stop(min(grace_seconds, _GATEWAY_GRACE_SECONDS))
        for child in (self._storage, self._monitor):
            child.stop(grace_seconds)

    def kill(self) -> None:
        """End all three as a crash of the machine would."""
        for child in reversed(self.children):
            child.kill()

    def kill_gateway(self) -> None:
        """End the gateway alone as a crash would."""
        self._gateway.kill()

    def restart_gateway(self, timeout_seconds: float = 60.0) -> None:
        """Start the gateway again and wait until S3 is served."""
        self._gateway.start()
        wait_ready(self._is_served, self.children, timeout_seconds=timeout_seconds)

    def _prepare(self) -> None:
        own = self._directory
        created = own / "created.json"
        if not created.exists():
            # A creation that was cut short leaves stores that fit no keyring: begin again.
            shutil.rmtree(own, ignore_errors=True)
            self._create()
            created.write_text(json.dumps({"monitor_port": self._ports.get("ceph-mon")}))
            return
        self._configure()
        if json.loads(created.read_text())["monitor_port"] != self._ports.get("ceph-mon"):
            # The monitor keeps its own address in its store, and obeys that.
            self._write_map()
            self._run("ceph-mon", "-i", "a", "--inject-monmap", str(own / "monmap"))
            created.write_text(json.dumps({"monitor_port": self._ports.get("ceph-mon")}))

    def _create(self) -> None:
        own = self._directory
        for name in ("mon", "osd", "rgw"):
            make_private_directory(own / name)
        (own / "cluster").write_text(str(uuid.uuid4()))
        write_private_file(own / "keyring", _new_keyring())
        self._configure()
        self._write_map()
        self._run(
            *("ceph-mon", "--mkfs", "-i", "a"),
            *("--monmap", str(own / "monmap"), "--keyring", str(own / "keyring")),
        )
        self._monitor.start()
        try:
            storage = str(uuid.uuid4())
            self._run("ceph", "--connect-timeout", "60", "osd", "new", storage)
            self._run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", storage)
        finally:
            self._monitor.stop()

    def _configure(self) -> None:
        own = self._directory
        (own / "ceph.conf").write_text(
            _CONFIGURATION.format(
                cluster=(own / "cluster").read_text(),
                directory=own,
                monitor_port=self._ports.get("ceph-mon"),
                gateway_port=self._ports.get("s3"),
            )
        )

    def _write_map(self) -> None:
        own = self._directory
        cluster = (own / "cluster").read_text()
        address = f"[v2:127.0.0.1:{self._ports.get('ceph-mon')}]"
        self._run(
            *("monmaptool", "--create", "--clobber", "--fsid", cluster),
            *("--addv", "a", address, str(own / "monmap")),
        )

    def _put_user(self) -> None:
        """Give the user exactly our keys. As metadata: in a file, never on a command line."""
        keys = json.dumps(self._keys)
        done = self._directory / "user.sha256"
        digest = hashlib.sha256(keys.encode()).hexdigest()
        if done.exists() and done.read_text() == digest:
            return
        draft = self._directory / "user.json"
        write_private_file(draft, json.dumps(_user(self._keys)))
        try:
            self._run(
                *("radosgw-admin", "-n", "client.rgw"),
                *("metadata", "put", f"user:{_USER}", "--infile", str(draft)),
            )
        finally:
            draft.unlink()
        write_private_file(done, digest)

    def _run(self, program: str, *arguments: str) -> None:
        # The system's own Python runs `ceph`; our interpreter's settings would mislead it.
        foreign = ("PYTHON", "CEPH_")
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(foreign)
        }
        try:
            result = subprocess.run(
                [program, "-c", str(self._directory / "ceph.conf"), *arguments],
                env=environment,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
        except FileNotFoundError as error:
            raise SetupError(f"There is no {program} on this machine: install Ceph.") from error
        except subprocess.TimeoutExpired as error:
            raise SetupError(f"{program} {arguments[0]} did not end within 120 s.") from error
        if result.returncode:
            raise SetupError(f"{program} {arguments[0]} failed:\n{result.stderr[-2000:]}")

    def _is_served(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._ports.get("s3"), timeout=5.0)
        try:
            connection.request("GET", "/")
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        return True


def _new_keyring() -> str:
    lines = []
    for owner, rights in _OWNERS.items():
        # Ceph's form of a key: type 1 (AES), time of creation, length, bytes.
        head = struct.pack("<hiih", 1, int(time.time()), 0, 16)
        lines += [f"[{owner}]", f"key = {base64.b64encode(head + os.urandom(16)).decode()}"]
        lines += [f'caps {service} = "{right}"' for service, right in rights.items()]
    return "\n".join(lines) + "\n"


def _user(keys: dict[str, str]) -> dict[str, object]:
    return {
        "key": f"user:{_USER}",
        "ver": {"tag": _USER, "ver": 1},
        "mtime": "1970-01-01T00:00:00Z",
        "data": {
            "user_id": _USER,
            "display_name": _USER,
            "email": "",
            "suspended": 0,
            "max_buckets": 1000,
            "subusers": [],
            "keys": [{"user": _USER, **keys}],
            "swift_keys": [],
            "caps": [],
            "op_mask": "read, write, delete",
        },
    }
