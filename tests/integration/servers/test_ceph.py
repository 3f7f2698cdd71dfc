import io
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import urllib3
from minio import Minio
from minio.error import S3Error

from cli.servers import CephS3
from tests.eventually import wait_until

pytestmark = pytest.mark.usefixtures("needs_ceph")

ACCESS_KEY, SECRET_KEY, BUCKET = "batchyard-key", "secret/with+signs=", "batches"
_PIECE = bytes(8 * 1024**2)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # Longer than a unix socket's path may be.
    return tmp_path_factory.mktemp("ceph") / ("long-" * 20)


@pytest.fixture(scope="module")
def server(run_dir: Path) -> Iterator[CephS3]:
    server = CephS3(run_dir, ACCESS_KEY, SECRET_KEY)
    server.start()
    client(server).make_bucket(BUCKET)
    yield server
    server.kill()


def client(
    server: CephS3,
    secret_key: str = SECRET_KEY,
    *,
    patience: urllib3.Timeout | None = None,
) -> Minio:
    """With `patience`, it asks once, and no longer than that."""
    pool = None if patience is None else urllib3.PoolManager(timeout=patience, retries=False)
    return Minio(
        server.endpoint.removeprefix("http://"),
        access_key=ACCESS_KEY,
        secret_key=secret_key,
        secure=False,
        region="us-east-1",
        http_client=pool,
    )


def put(server: CephS3, name: str, body: bytes) -> None:
    client(server).put_object(BUCKET, name, io.BytesIO(body), len(body))


def put_new(server: CephS3, name: str, body: bytes) -> None:
    # `put_object` takes no free headers, and sends every name it does not know as metadata.
    client(server)._put_object(BUCKET, name, body, headers={"If-None-Match": "*"})  # noqa: SLF001  # the only way to send the header


def get(server: CephS3, name: str) -> bytes:
    response = client(server).get_object(BUCKET, name)
    try:
        return response.read()
    finally:
        response.close()
        response.release_conn()


def test_the_second_put_of_a_new_object_is_refused(server: CephS3) -> None:
    put_new(server, "once", b"first")

    with pytest.raises(S3Error) as refused:
        put_new(server, "once", b"second")

    assert refused.value.code == "PreconditionFailed"
    assert refused.value.response.status == 412
    assert get(server, "once") == b"first"


def test_a_wrong_secret_is_refused(server: CephS3) -> None:
    with pytest.raises(S3Error) as refused:
        client(server, "wrong").list_buckets()

    assert refused.value.code == "SignatureDoesNotMatch"


def test_a_stranger_reads_nothing(server: CephS3) -> None:
    put(server, "private", b"private")
    stranger = Minio(server.endpoint.removeprefix("http://"), secure=False, region="us-east-1")

    with pytest.raises(S3Error) as refused:
        stranger.get_object(BUCKET, "private")

    assert refused.value.code == "AccessDenied"


def test_every_daemon_demands_a_key(server: CephS3, run_dir: Path) -> None:
    configuration = (run_dir / "ceph" / "ceph.conf").read_text()

    assert configuration.count("_required = cephx") == 3
    assert (run_dir / "ceph" / "keyring").stat().st_mode & 0o077 == 0


def test_only_loopback_is_listened_on(
    server: CephS3, listening_addresses: Callable[[int], set[str]]
) -> None:
    pids = [child.pid for child in server.children]

    assert {ip for pid in pids if pid for ip in listening_addresses(pid)} == {"127.0.0.1"}


def test_a_kill_of_everything_loses_no_object_and_keeps_the_endpoint(server: CephS3) -> None:
    endpoint = server.endpoint
    for number in range(20):
        put(server, f"kept/{number}", str(number).encode())

    server.kill()
    server.start()

    assert server.endpoint == endpoint
    assert [get(server, f"kept/{number}") for number in range(20)] == [
        str(number).encode() for number in range(20)
    ]


def test_the_gateway_alone_can_be_killed_and_started_again(server: CephS3) -> None:
    put(server, "gateway", b"kept")

    server.kill_gateway()
    server.restart_gateway()

    assert get(server, "gateway") == b"kept"


def test_an_orderly_stop_keeps_objects_and_new_keys_replace_old_ones(
    server: CephS3, run_dir: Path
) -> None:
    put(server, "stopped", b"kept")
    server.stop()
    renewed = CephS3(run_dir, ACCESS_KEY, "another-secret")

    try:
        renewed.start()
        with pytest.raises(S3Error):
            get(renewed, "stopped")
        response = client(renewed, "another-secret").get_object(BUCKET, "stopped")
        body = response.read()
        response.close()
        response.release_conn()
    finally:
        renewed.stop()
        server.start()

    assert body == b"kept"


def test_a_deleted_port_file_gives_other_ports_and_the_same_objects(
    server: CephS3, run_dir: Path
) -> None:
    put(server, "moved", b"kept")
    endpoint = server.endpoint
    server.stop()
    (run_dir / "ports.json").unlink()

    server.start()

    assert server.endpoint != endpoint
    assert get(server, "moved") == b"kept"


def test_a_creation_cut_short_begins_again(tmp_path: Path) -> None:
    (tmp_path / "ceph" / "mon").mkdir(parents=True)
    (tmp_path / "ceph" / "mon" / "torn").write_text("half a store")
    server = CephS3(tmp_path, ACCESS_KEY, SECRET_KEY)

    try:
        server.start()
        client(server).make_bucket(BUCKET)
    finally:
        server.kill()

    assert json.loads((tmp_path / "ceph" / "created.json").read_text())


def test_one_that_has_grown_starts_although_the_monitor_knows_it_as_nearly_full(
    tmp_path: Path,
) -> None:
    small = CephS3(tmp_path, ACCESS_KEY, SECRET_KEY, store_bytes=1024**3)
    small.start()
    run = small._cluster.run  # noqa: SLF001  # Ceph's own tools tell what its monitor knows
    try:
        client(small).make_bucket(BUCKET)
        for number in range(8):
            put(small, f"first-{number}", _PIECE)
        run("ceph", "osd", "set-nearfull-ratio", "0.05")
        wait_until(lambda: "nearfull" in _states(run("ceph", "osd", "dump")), timeout=60)
    finally:
        small.kill()
    large = CephS3(tmp_path, ACCESS_KEY, SECRET_KEY)
    try:
        large.start()

        assert get(large, "first-7") == _PIECE
    finally:
        large.kill()


def _states(dump: str) -> str:
    """What the monitor knows of the storage daemon."""
    return next(line for line in dump.splitlines() if line.startswith("osd.0"))


def test_a_store_that_is_full_grows_at_its_next_start_and_has_what_it_had(tmp_path: Path) -> None:
    small = CephS3(tmp_path, ACCESS_KEY, SECRET_KEY, store_bytes=1024**3)
    small.start()
    try:
        client(small).make_bucket(BUCKET)
        put(small, "first", b"first")
        impatient = client(small, patience=urllib3.Timeout(connect=3, read=5))
        # Ceph answers nobody once it is full.
        with pytest.raises(urllib3.exceptions.ReadTimeoutError):
            for number in itertools.count():
                impatient.put_object(BUCKET, f"more-{number}", io.BytesIO(_PIECE), len(_PIECE))
    finally:
        small.kill()
    large = CephS3(tmp_path, ACCESS_KEY, SECRET_KEY)
    try:
        large.start()

        assert get(large, "first") == b"first"

        put(large, "last", _PIECE)

        assert get(large, "last") == _PIECE
    finally:
        large.kill()
