"""Each process signs its S3 calls for the region that is set."""

import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from cli.servers import free_port
from shared.bus.connection import Bus
from shared.errors import SetupError
from shared.settings import open_storage
from shared.storage import Storage
from tests.conftest import a_bucket
from tests.eventually import wait_until
from tests.servers import S3
from worker.settings import WorkerSettings

_REGION = "eu-central-1"
_SCOPE = f"/{_REGION}/s3/aws4_request"
_ROOT = Path(__file__).parents[2]
_COMMANDS = {
    "gateway": ["gateway"],
    "dispatcher": ["dispatcher"],
    "keys create": ["cli", "keys", "create", "--tenant", "acme"],
    "rebuild": ["cli", "rebuild"],
}


@pytest.fixture
def environment(bus: Bus, amqp_url: str, redis_url: str) -> dict[str, str]:
    """Of any process of the fleet, but for the S3 server's address."""
    assert bus is not None
    return {
        **{name: text for name, text in os.environ.items() if "BATCHYARD" not in name},
        "BATCHYARD_AMQP_URL": amqp_url,
        "BATCHYARD_REDIS_URL": f"{redis_url.rpartition('/')[0]}/10",
        "BATCHYARD_S3_ACCESS_KEY": "key",
        "BATCHYARD_S3_SECRET_KEY": "secret",
        "BATCHYARD_S3_REGION": _REGION,
        "BATCHYARD_CATALOG": str(_ROOT / "k8s/base/catalog.yaml"),
        "BATCHYARD_RAY_ADDRESS": "http://127.0.0.1:1",
        "BATCHYARD_RAY_TOKEN": "token",
        "BATCHYARD_PORT": str(free_port()),
        "BATCHYARD_SERVICE_USER": urlsplit(amqp_url).username or "",
    }


@pytest.mark.parametrize("command", _COMMANDS.values(), ids=_COMMANDS.keys())
def test_a_process_signs_for_the_region(command: list[str], environment: dict[str, str]) -> None:
    with _listening() as (endpoint, signatures):
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            env={**environment, "BATCHYARD_S3_ENDPOINT": endpoint},
            cwd=_ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_until(lambda: bool(signatures) or process.poll() is not None, timeout=120)
        finally:
            process.kill()
            process.wait(30)

    assert signatures
    assert all(_SCOPE in signature for signature in signatures)


def test_a_lane_job_signs_for_the_region(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setenv("BATCHYARD_S3_ENDPOINT", "http://127.0.0.1:1")

    storage = open_storage(WorkerSettings())

    assert _signed_for(storage) == _REGION
    storage.close()


async def test_a_server_takes_what_is_signed_for_its_region(s3: S3) -> None:
    async with a_bucket(s3) as made:
        storage = Storage(*s3, made.bucket, region=_REGION)

        # Ceph has no regions, and takes every name in a signature.
        written = await storage.put("key", b"body")

        assert await storage.get("key", etag=written.etag) == b"body"
        assert (_signed_for(made), _signed_for(storage)) == ("us-east-1", _REGION)
        storage.close()


async def test_a_bucket_is_made_in_the_region_and_where_there_is_none_it_is_said(s3: S3) -> None:
    if "TEST_S3_ENDPOINT" in os.environ:
        pytest.skip("NOT TESTED: the server that TEST_S3_ENDPOINT names may take every region")
    storage = Storage(*s3, "batchyard-nowhere", region=_REGION)

    with pytest.raises(SetupError, match=f"no region '{_REGION}'.*BATCHYARD_S3_REGION"):
        await storage.prepare()
    storage.close()


@contextmanager
def _listening() -> Iterator[tuple[str, list[str]]]:
    """The address of what refuses every call, and the signatures that it has seen."""
    signatures: list[str] = []

    class Refusing(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            signatures.append(self.headers["authorization"])
            self.send_response(HTTPStatus.FORBIDDEN)
            self.send_header("content-length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            self.do_HEAD()

        def log_message(self, format: str, *_: object) -> None:  # noqa: A002  # the library's name
            del format

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", signatures
        finally:
            server.shutdown()


def _signed_for(storage: Storage) -> str:
    """The region in a URL's signature."""
    url = storage.signed_url("key", at=1_700_000_000, seconds=60)
    return url.partition("X-Amz-Credential=")[2].partition("&")[0].split("%2F")[2]
