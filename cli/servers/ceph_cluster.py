"""A Ceph cluster of one monitor and one storage daemon: its configuration, keys and first creation.

Ceph's own keys (cephx) are required between the daemons too; they cost nothing measurable.
"""

import base64
import json
import os
import shutil
import struct
import subprocess
import time
import uuid
from contextlib import suppress
from pathlib import Path

from cli.servers.ports import Ports
from cli.servers.process import Child, make_private_directory, write_private_file
from shared.errors import SetupError

#: The section of Ceph's configuration, and the key, that the S3 gateway runs with.
GATEWAY = "client.rgw"
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
# Empty: the path of a socket may have 107 bytes, and a run directory's path may be longer.
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
# Days instead of 16 s. After a pause longer than its read lease, a lone storage daemon never
# answers requests from before: only another daemon could wake it.
osd_pool_default_read_lease_ratio = 50000
mon_min_osdmap_epochs = 50
# Four waits that are meant for clusters of many machines; here each costs seconds at every start:
# a vote collects proposals, a client looks for another monitor, an operation waits for a new map
# after the storage daemon has come back, and closing the disk waits for one poll.
paxos_propose_interval = 0.02
paxos_min_wait = 0.01
mon_client_hunt_interval = 0.3
mon_client_hunt_interval_backoff = 1.0
objecter_tick_interval = 0.5
objecter_timeout = 1
bdev_aio_poll_ms = 20
# Seconds. Until the watch of a killed gateway times out, each new bucket or user waits for it.
osd_client_watch_timeout = 5
[mon.a]
mon_data = {directory}/mon
[osd]
osd_data = {directory}/osd
osd_objectstore = bluestore
bluestore_block_db_create = false
bluestore_block_wal_create = false
osd_memory_target = 939524096
osd_max_object_name_len = 256
osd_max_object_namespace_len = 64
[client.rgw]
rgw_frontends = beast endpoint=127.0.0.1:{gateway_port} tcp_nodelay=1
rgw_data = {directory}/rgw
# Without Swift, the admin API and other APIs that are not used here.
rgw_enable_apis = s3
rgw_thread_pool_size = 64
rgw_enable_usage_log = false
rgw_run_sync_thread = false
rgw_gc_obj_min_wait = 60
"""


#: A store may become as large as this part of what its disk has, between these bounds. Once it is
#: full, Ceph answers nobody any more, not even who wants to read or to delete.
_DISK_PART, _LEAST_BYTES, _MOST_BYTES = 0.9, 20 * 1024**3, 512 * 1024**3
_MEBIBYTE = 1024**2
#: What `st_blocks` counts.
_BYTES_OF_A_BLOCK = 512
#: A store grows at its start when it may become so many times as large.
_WORTH_GROWING = 1.1


class CephCluster:
    """The files of one cluster in its directory, and the programs that work on them."""

    def __init__(self, directory: Path, ports: Ports, store_bytes: int | None = None) -> None:
        """Its store has `store_bytes` at most; by default most of what the disk has."""
        self.directory = directory.resolve()
        self._ports = ports
        self._store_bytes = store_bytes

    @property
    def configuration(self) -> Path:
        """What every Ceph program is started with."""
        return self.directory / "ceph.conf"

    def prepare(self, monitor: Child) -> None:
        """Create everything the first time; later, write the ports of this start."""
        created = self.directory / "created.json"
        if not created.exists():
            # A creation that was cut short leaves stores that match no keyring: begin again.
            shutil.rmtree(self.directory, ignore_errors=True)
            self._create(monitor)
            created.write_text(json.dumps({"monitor_port": self._ports.get("ceph-mon")}))
            return
        self._configure()
        self._grow()
        if json.loads(created.read_text())["monitor_port"] != self._ports.get("ceph-mon"):
            # The monitor keeps its own address in its store and uses that one.
            self._write_map()
            self.run("ceph-mon", "-i", "a", "--inject-monmap", str(self.directory / "monmap"))
            created.write_text(json.dumps({"monitor_port": self._ports.get("ceph-mon")}))

    def give_up_earlier_storage(self) -> None:
        """Tell the monitor that the storage daemon that was killed is gone.

        It takes no word of another one as long as it counts on that one, for a quarter of an hour;
        and one whose store is no longer as full as the monitor knows waits for it to learn that.
        """
        with suppress(SetupError):
            self.run("ceph", "--connect-timeout", "10", "osd", "down", "0")

    def run(self, program: str, *arguments: str) -> str:
        """What one of Ceph's programs prints. Raises SetupError with its complaint."""
        # The system's own Python runs `ceph`; our interpreter's settings would mislead it.
        foreign = ("PYTHON", "CEPH_")
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(foreign)
        }
        # Not all of them take `-c`.
        environment["CEPH_CONF"] = str(self.configuration)
        try:
            result = subprocess.run(
                [program, *arguments],
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
            code, said = result.returncode, result.stderr[-2000:]
            raise SetupError(f"{program} {arguments[0]} ended with {code}:\n{said}")
        return result.stdout

    def _create(self, monitor: Child) -> None:
        own = self.directory
        for name in ("mon", "osd", "rgw"):
            make_private_directory(own / name)
        (own / "cluster").write_text(str(uuid.uuid4()))
        write_private_file(own / "keyring", _new_keyring())
        self._configure()
        self._write_map()
        self.run(
            *("ceph-mon", "--mkfs", "-i", "a"),
            *("--monmap", str(own / "monmap"), "--keyring", str(own / "keyring")),
        )
        monitor.start()
        try:
            storage = str(uuid.uuid4())
            self.run("ceph", "--connect-timeout", "60", "osd", "new", storage)
            # The store is a sparse file.
            size = ("--bluestore-block-size", str(self._most_bytes()))
            self.run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", storage, *size)
        finally:
            monitor.stop()

    def _configure(self) -> None:
        self.configuration.write_text(
            _CONFIGURATION.format(
                cluster=(self.directory / "cluster").read_text(),
                directory=self.directory,
                monitor_port=self._ports.get("ceph-mon"),
                gateway_port=self._ports.get("s3"),
            )
        )

    @property
    def _store(self) -> Path:
        return self.directory / "osd" / "block"

    def _most_bytes(self) -> int:
        """How large the store may become."""
        if self._store_bytes is not None:
            return self._store_bytes
        has = shutil.disk_usage(self.directory).free
        if self._store.exists():
            has += self._store.stat().st_blocks * _BYTES_OF_A_BLOCK
        most = min(_MOST_BYTES, max(_LEAST_BYTES, int(_DISK_PART * has)))
        return most - most % _MEBIBYTE

    def _grow(self) -> None:
        """Let the store become larger if the disk has more by now; what is in it stays."""
        most, growing = self._most_bytes(), self.directory / "growing"
        if most >= _WORTH_GROWING * self._store.stat().st_size:
            growing.touch()
            os.truncate(self._store, most)
        if not growing.exists():
            return
        self.run("ceph-bluestore-tool", "bluefs-bdev-expand", "--path", str(self._store.parent))
        growing.unlink()

    def _write_map(self) -> None:
        cluster = (self.directory / "cluster").read_text()
        address = f"[v2:127.0.0.1:{self._ports.get('ceph-mon')}]"
        self.run(
            *("monmaptool", "--create", "--clobber", "--fsid", cluster),
            *("--addv", "a", address, str(self.directory / "monmap")),
        )


def _new_keyring() -> str:
    lines = []
    for owner, rights in _OWNERS.items():
        # Ceph's form of a key: type 1 (AES), time of creation, length, bytes.
        head = struct.pack("<hiih", 1, int(time.time()), 0, 16)
        lines += [f"[{owner}]", f"key = {base64.b64encode(head + os.urandom(16)).decode()}"]
        lines += [f'caps {service} = "{right}"' for service, right in rights.items()]
    return "\n".join(lines) + "\n"
