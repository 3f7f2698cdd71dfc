"""A private S3: one Ceph monitor, one storage daemon and one gateway, on loopback, data on disk."""

import hashlib
import http.client
import json
import time
from functools import partial
from math import inf
from pathlib import Path

from cli.servers.ceph_cluster import GATEWAY, CephCluster
from cli.servers.ceph_users import CephUsers, S3User
from cli.servers.ports import Ports
from cli.servers.process import Child, all_in_turn, wait_ready, write_private_file
from shared.errors import SetupError

#: The user that Batchyard's own processes are, and the owner of its bucket.
SERVICE_USER = "batchyard"
#: The user that lane jobs are; the bucket's policy says what it may do.
LANE_USER = "batchyard-lane"
_SERVICE_BUCKETS = 1000
_GATEWAY_GRACE_SECONDS = 1.0
#: A start takes some four.
_STORAGE_SECONDS = 20.0


class CephS3:
    """One S3 endpoint with its data in `<run_dir>/ceph`; our own user may create buckets.

    With `lane_keys`, an access key and a secret key, there is a user for lane jobs. Its data may
    have `store_bytes`; by default most of what the disk has.
    """

    def __init__(
        self,
        run_dir: Path,
        access_key: str,
        secret_key: str,
        *,
        lane_keys: tuple[str, str] | None = None,
        store_bytes: int | None = None,
    ) -> None:
        if not all((access_key, secret_key, *(lane_keys or ()))):
            raise SetupError("S3 needs an access key and a secret key; neither may be empty.")
        self._own_users = [S3User(SERVICE_USER, access_key, secret_key, _SERVICE_BUCKETS)]
        if lane_keys is not None:
            self._own_users.append(S3User(LANE_USER, *lane_keys))
        self._ports = Ports(run_dir)
        self._cluster = CephCluster(run_dir / "ceph", self._ports, store_bytes)
        self.users = CephUsers(self._cluster)
        own = ["-c", str(self._cluster.configuration), "-f"]
        self._monitor = Child("ceph-mon", ["ceph-mon", *own, "-i", "a"], run_dir)
        self._storage = Child("ceph-osd", ["ceph-osd", *own, "-i", "0"], run_dir)
        self._gateway = Child("ceph-s3", ["radosgw", *own, "-n", GATEWAY], run_dir)

    @property
    def endpoint(self) -> str:
        """The address, `http://host:port`."""
        return f"http://127.0.0.1:{self._ports.get('s3')}"

    @property
    def directory(self) -> Path:
        """Where its data are."""
        return self._cluster.directory

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
        self._cluster.prepare(self._monitor)
        for child in self.children:
            child.start()

    def wait(self, timeout_seconds: float = 120.0) -> None:
        """Wait until S3 is served and our users have the keys given."""
        patience = time.monotonic() + _STORAGE_SECONDS

        def is_served() -> bool:
            nonlocal patience
            if self.is_served():
                return True
            if time.monotonic() > patience:
                patience = inf
                self._cluster.give_up_earlier_storage()
            return False

        wait_ready(is_served, self.children, timeout_seconds=timeout_seconds)
        self._put_own_users()

    def stop(self, grace_seconds: float = 30.0) -> None:
        """End it in order: gateway, storage, monitor (the storage daemon signs off there)."""
        # The gateway holds no data, and often waits half a minute for an answer before it ends.
        gateway = partial(self._gateway.stop, min(grace_seconds, _GATEWAY_GRACE_SECONDS))
        others = (partial(child.stop, grace_seconds) for child in (self._storage, self._monitor))
        all_in_turn([gateway, *others])

    def kill(self) -> None:
        """End all three as a crash of the machine would."""
        all_in_turn(child.kill for child in reversed(self.children))

    def kill_gateway(self) -> None:
        """End the gateway alone as a crash would."""
        self._gateway.kill()

    def restart_gateway(self, timeout_seconds: float = 60.0) -> None:
        """Start the gateway again and wait until S3 is served."""
        self._gateway.start()
        wait_ready(self.is_served, self.children, timeout_seconds=timeout_seconds)

    def is_served(self) -> bool:
        """Whether the S3 gateway answers."""
        connection = http.client.HTTPConnection("127.0.0.1", self._ports.get("s3"), timeout=5.0)
        try:
            connection.request("GET", "/")
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        return True

    def _put_own_users(self) -> None:
        """Give our users exactly our keys; skipped where an earlier start has done it."""
        done = self.directory / "user.sha256"
        digest = hashlib.sha256(json.dumps(self._own_users).encode()).hexdigest()
        if done.exists() and done.read_text() == digest:
            return
        for user in self._own_users:
            self.users.put(user)
        write_private_file(done, digest)
