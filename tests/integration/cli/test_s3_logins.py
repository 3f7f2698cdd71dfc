"""`batchyard s3-logins` on a real Ceph: what a login that it made may do, and what it may not."""

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from minio import Minio
from minio.commonconfig import CopySource, Tags
from minio.error import S3Error
from typer.testing import CliRunner, Result

from cli.__main__ import app
from cli.fleet.credentials import read_credentials
from cli.s3_logins.bucket import apply_own_policy
from cli.servers import CephS3, missing
from shared.errors import BatchyardError, InvalidInputError, NotFoundError, SetupError
from shared.settings import DEFAULT_TENANT_PREFIX
from shared.storage import Storage
from tests.conftest import minio_client
from tests.servers import S3, absent

BUCKET = "batchyard"
Act = Callable[[Minio], Any]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a fleet."""
    return tmp_path_factory.mktemp("fleet-with-s3")


@pytest.fixture(scope="module")
def service(run_dir: Path) -> Iterator[S3]:
    """The fleet's S3, which runs, with the login of its processes."""
    if missing(("ceph",)):
        absent("Ceph's programs", "PATH")
    made = read_credentials(run_dir)
    server = CephS3(
        run_dir / "s3",
        made.s3_access_key,
        made.s3_secret_key,
        lane_keys=(made.lane_s3_access_key, made.lane_s3_secret_key),
    )
    try:
        server.start()
        yield S3(server.endpoint, made.s3_access_key, made.s3_secret_key)
    finally:
        server.kill()


@pytest.fixture(scope="module")
def logins(run_dir: Path, service: S3) -> dict[str, Minio]:
    """The clients of two tenants, with the logins that the command has made."""
    made = {tenant: _made("create", "--tenant", tenant, run_dir=run_dir) for tenant in _TENANTS}
    assert made["acme"]["prefix"] == "inbox/acme/"
    return {tenant: _client(login) for tenant, login in made.items()}


_TENANTS = ("acme", "globex")


async def test_a_login_places_inputs_that_the_service_can_read(
    service: S3, logins: dict[str, Minio]
) -> None:
    small, large = b"one line\n", bytes(11 * 1024 * 1024)
    placed = _put("inbox/acme/small.jsonl", small)(logins["acme"])
    _put("inbox/acme/large.jsonl", large)(logins["acme"])

    storage = Storage(*service, BUCKET)
    read = [await storage.get(f"inbox/acme/{name}.jsonl") for name in ("small", "large")]
    found = await storage.stat("inbox/acme/small.jsonl")
    storage.close()

    assert read == [small, large]
    assert (found.etag, found.size) == (placed.etag, len(small))
    listed = logins["acme"].list_objects(BUCKET, "inbox/acme/", recursive=True)
    assert {one.object_name for one in listed} >= {
        "inbox/acme/small.jsonl",
        "inbox/acme/large.jsonl",
    }


async def test_a_login_reads_results_that_are_tagged_with_its_tenant(
    service: S3, logins: dict[str, Minio]
) -> None:
    await _result(service, "batches/batch_1/output.jsonl", "acme")

    assert _get("batches/batch_1/output.jsonl")(logins["acme"]) == b"result"
    with pytest.raises(S3Error, match="AccessDenied"):
        _get("batches/batch_1/output.jsonl")(logins["globex"])


def _put(key: str, body: bytes = b"x") -> Act:
    return lambda client: client.put_object(BUCKET, key, io.BytesIO(body), len(body))


def _get(key: str) -> Act:
    def act(client: Minio) -> bytes:
        response = client.get_object(BUCKET, key)
        try:
            return response.read()
        finally:
            response.close()
            response.release_conn()

    return act


def _tag(key: str) -> Act:
    tags = Tags.new_object_tags()
    tags["tenant"] = "acme"
    return lambda client: client.set_object_tags(BUCKET, key, tags)


_FORBIDDEN: dict[str, Act] = {
    "place another's input": _put("inbox/globex/mine"),
    "place beside its prefix": _put("inbox/acme-2/mine"),
    "overwrite a result": _put("batches/batch_2/output.jsonl"),
    "read another's input": _get("inbox/globex/input"),
    "read another's result": _get("batches/batch_2/output.jsonl"),
    "read what has no tenant": _get("batches/batch_2/manifest.json"),
    "read keys": _get("keys/key_1.json"),
    "tag another's result": _tag("batches/batch_2/output.jsonl"),
    "copy another's result": lambda client: client.copy_object(
        BUCKET, "inbox/acme/copy", CopySource(BUCKET, "batches/batch_2/output.jsonl")
    ),
    "delete another's input": lambda client: client.remove_object(BUCKET, "inbox/globex/input"),
    "list everything": lambda client: list(client.list_objects(BUCKET, recursive=True)),
    "list another's inputs": lambda client: list(client.list_objects(BUCKET, "inbox/globex/")),
    "make a bucket": lambda client: client.make_bucket("buckets-of-acme"),
    "read the policy": lambda client: client.get_bucket_policy(BUCKET),
    "replace the policy": lambda client: client.delete_bucket_policy(BUCKET),
}


@pytest.mark.parametrize("act", _FORBIDDEN.values(), ids=_FORBIDDEN.keys())
async def test_a_login_can_do_nothing_else(service: S3, logins: dict[str, Minio], act: Act) -> None:
    _put("inbox/globex/input")(logins["globex"])
    await _result(service, "batches/batch_2/output.jsonl", "globex")
    storage = Storage(*service, BUCKET)
    for key in ("batches/batch_2/manifest.json", "keys/key_1.json"):
        await storage.put(key, b"{}")
    storage.close()

    with pytest.raises(S3Error, match="AccessDenied"):
        act(logins["acme"])


@pytest.fixture
async def lane_login(run_dir: Path, service: S3) -> Minio:
    """The login of lane jobs, with the policy that the start of a fleet sets."""
    made = read_credentials(run_dir)
    storage = Storage(*service, BUCKET)
    await storage.prepare()
    await storage.make_readable()
    for key in _OF_OTHERS:
        await storage.put(key, b"{}")
    server = CephS3(run_dir / "s3", made.s3_access_key, made.s3_secret_key)
    await apply_own_policy(server, storage, DEFAULT_TENANT_PREFIX)
    storage.close()
    return minio_client(S3(service.endpoint, made.lane_s3_access_key, made.lane_s3_secret_key))


_PART = "batches/batch_1/parts/000000-1.jsonl"
_READ_BY_LANE_JOBS = ("files/acme/file-1", "packs/1", "inbox/acme/x", "batches/batch_1/copies/1")
_OF_OTHERS = (
    *_READ_BY_LANE_JOBS,
    "keys/key_1.json",
    "webhooks/we_1.json",
    "batches/batch_1/plan.json",
    "batches/batch_1/completed/output.jsonl",
)
_FORBIDDEN_TO_LANE_JOBS: dict[str, Act] = {
    "read keys": _get("keys/key_1.json"),
    "read signing secrets": _get("webhooks/we_1.json"),
    "read a plan": _get("batches/batch_1/plan.json"),
    "read a result": _get("batches/batch_1/completed/output.jsonl"),
    "read what is not there": _get("files/acme/file-none"),
    "write a result": _put("batches/batch_1/completed/output.jsonl"),
    "write a commit": _put("batches/batch_1/commit-completed.json"),
    "write an input": _put("files/acme/file-1"),
    "write a key": _put("keys/key_2.json"),
    "delete a part": lambda client: client.remove_object(BUCKET, _PART),
    "list everything": lambda client: list(client.list_objects(BUCKET, recursive=True)),
    "make a bucket": lambda client: client.make_bucket("buckets-of-lanes"),
    "replace the policy": lambda client: client.delete_bucket_policy(BUCKET),
}


async def test_a_lane_job_reads_inputs_and_writes_parts_that_the_dispatcher_can_read(
    lane_login: Minio, service: S3, run_dir: Path
) -> None:
    assert [_get(key)(lane_login) for key in _READ_BY_LANE_JOBS] == [b"{}"] * 4
    _put(_PART, b"a part")(lane_login)
    assert _get(_PART)(lane_login) == b"a part"

    storage = Storage(*service, BUCKET)
    assert await storage.get(_PART) == b"a part"
    await storage.remove([_PART])
    made = read_credentials(run_dir)
    own = Storage(service.endpoint, made.lane_s3_access_key, made.lane_s3_secret_key, BUCKET)
    # What it asks if an object fails: whether S3 answers at all.
    await own.check_reads()
    own.close()
    storage.close()


@pytest.mark.parametrize(
    "act", _FORBIDDEN_TO_LANE_JOBS.values(), ids=_FORBIDDEN_TO_LANE_JOBS.keys()
)
async def test_a_lane_job_can_do_nothing_else(lane_login: Minio, act: Act) -> None:
    _put(_PART)(lane_login)

    with pytest.raises(S3Error, match="AccessDenied"):
        act(lane_login)


def test_new_keys_replace_the_old_ones_and_others_keep_theirs(
    run_dir: Path, logins: dict[str, Minio]
) -> None:
    first = _client(_made("create", "--tenant", "umbrella", run_dir=run_dir))

    second = _client(_made("renew", "umbrella", run_dir=run_dir))

    _put("inbox/umbrella/x")(second)
    _put("inbox/acme/x")(logins["acme"])
    with pytest.raises(S3Error):
        _put("inbox/umbrella/x")(first)


def test_a_deleted_login_is_refused_and_what_it_placed_stays(run_dir: Path, service: S3) -> None:
    client = _client(_made("create", "--tenant", "initech", run_dir=run_dir))
    _put("inbox/initech/x")(client)

    _run("delete", "initech", run_dir=run_dir)

    with pytest.raises(S3Error):
        _put("inbox/initech/y")(client)
    assert _get("inbox/initech/x")(minio_client(service)) == b"x"
    assert "initech" not in _run("list", run_dir=run_dir).stdout.split()
    assert "tenant-initech" not in minio_client(service).get_bucket_policy(BUCKET)


def test_the_secret_is_shown_in_plain_text_once(run_dir: Path, service: S3) -> None:
    shown = _run("create", "--tenant", "hooli", run_dir=run_dir)

    names = [line.partition("  ")[0].strip() for line in shown.stdout.splitlines()]
    assert names == ["access key", "secret key", "endpoint", "bucket", "prefix"]
    assert "cannot be shown again" in shown.stderr


@pytest.mark.parametrize(
    ("arguments", "error", "reason"),
    [
        (("create", "--tenant", "acme"), InvalidInputError, "renew acme"),
        (("create", "--tenant", "Acme"), InvalidInputError, "lower-case"),
        (("renew", "nobody"), NotFoundError, "nobody"),
        (("delete", "nobody"), NotFoundError, "nobody"),
        (("create", "--tenant", "x", "--tenant-prefix", "inbox/"), SetupError, "{tenant}/"),
        (("create", "--tenant", "x", "--tenant-prefix", "{tenant}"), SetupError, "{tenant}/"),
    ],
)
def test_what_cannot_be_done_is_said(
    run_dir: Path,
    logins: dict[str, Minio],
    arguments: tuple[str, ...],
    error: type[BatchyardError],
    reason: str,
) -> None:
    assert set(logins) == set(_TENANTS)

    with pytest.raises(error, match=reason):
        _run(*arguments, run_dir=run_dir)


def test_without_a_fleet_the_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"--print policy"):
        _run("create", "--tenant", "acme", run_dir=tmp_path)


async def _result(service: S3, key: str, tenant: str) -> None:
    storage = Storage(*service, BUCKET)
    await storage.put(key, b"result")
    await storage.tag(key, {"tenant": tenant})
    storage.close()


def _made(*arguments: str, run_dir: Path) -> dict[str, str]:
    made: dict[str, str] = json.loads(_run(*arguments, "--json", run_dir=run_dir).stdout)
    return made


def _client(login: dict[str, str]) -> Minio:
    return minio_client(S3(login["endpoint"], login["access_key"], login["secret_key"]))


def _run(*arguments: str, run_dir: Path) -> Result:
    result = CliRunner().invoke(
        app, ["s3-logins", *arguments, "--run-dir", str(run_dir)], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result
