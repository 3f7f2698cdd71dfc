"""`batchyard tenants` on a real Redis and S3."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from typer.testing import CliRunner, Result

from cli import servers
from cli.__main__ import app
from cli.fleet.credentials import read_credentials
from shared.errors import BatchyardError, InvalidInputError
from shared.state import State, Stream
from shared.storage import Storage
from tests.servers import S3

T = TypeVar("T")


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    run_dir = tmp_path_factory.mktemp("fleet")
    redis = servers.Redis(run_dir / "redis", read_credentials(run_dir).redis_password)
    if servers.missing(("redis",)):
        pytest.skip("NOT TESTED: there is no redis-server.")
    try:
        redis.start()
        yield run_dir
    finally:
        redis.kill()


@pytest.fixture(autouse=True)
def _bucket(monkeypatch: pytest.MonkeyPatch, s3: S3) -> None:
    """No Redis but the folder's, and a bucket where the settings are kept."""
    monkeypatch.delenv("BATCHYARD_REDIS_URL", raising=False)
    options = zip(("ENDPOINT", "ACCESS_KEY", "SECRET_KEY"), s3, strict=True)
    for name, text in (*options, ("BUCKET", "tenants")):
        monkeypatch.setenv(f"BATCHYARD_S3_{name}", text)


def test_what_is_set_is_shown_kept_and_known_to_processes(run_dir: Path, s3: S3) -> None:
    made = _json(
        "set",
        "acme",
        "--weight",
        "2.5",
        "--model",
        "a/b",
        "--model",
        "c",
        "--stored-bytes",
        "1000",
        run_dir=run_dir,
    )
    shown = _json("show", "acme", run_dir=run_dir)["settings"]
    known = _ask(run_dir, lambda state: state.tenants.settings("acme"))

    assert made["set"] == {"weight": 2.5, "models": ["a/b", "c"], "stored_bytes": 1000}
    assert shown["weight"] == {"value": 2.5, "from": "tenant"}
    assert shown["models"] == {"value": ["a/b", "c"], "from": "tenant"}
    assert shown["stored_bytes"] == {"value": 1000, "from": "tenant", "used": 0}
    assert shown["batches_per_hour"] == {"value": 2000, "from": "settings", "used": 0}
    assert (known.weight, known.models, known.stored_bytes) == (2.5, ("a/b", "c"), 1000)
    assert _stored(s3, "tenants/acme.json") == made["set"]


def test_a_later_change_leaves_the_rest_and_unset_forgets(run_dir: Path) -> None:
    _json("set", "rest", "--event-streams", "5", "--batches-per-hour", "7", run_dir=run_dir)

    changed = _json("set", "rest", "--event-streams", "0", run_dir=run_dir)
    forgotten = _json("set", "rest", "--unset", "batches-per-hour", run_dir=run_dir)

    [*_, last] = (run_dir / "trail.jsonl").read_text().splitlines()
    assert (json.loads(last)["act"], json.loads(last)["object"]) == ("tenant.changed", "rest")
    assert changed["set"] == {"batches_per_hour": 7, "event_streams": 0}
    assert forgotten["set"] == {"event_streams": 0}


def test_what_holds_for_every_tenant_is_the_default_of_each(run_dir: Path) -> None:
    _json("set", "--default", "--custom-id-characters", "64", run_dir=run_dir)
    _json("set", "own", "--custom-id-characters", "32", run_dir=run_dir)
    try:
        found = [
            _json("show", *who, run_dir=run_dir)["settings"]["custom_id_characters"]
            for who in (["--default"], ["own"], ["any"])
        ]
    finally:
        _json("set", "--default", "--unset", "custom_id_characters", run_dir=run_dir)

    assert found == [
        {"value": 64, "from": "default"},
        {"value": 32, "from": "tenant"},
        {"value": 64, "from": "default"},
    ]
    after = _json("show", "any", run_dir=run_dir)["settings"]["custom_id_characters"]
    assert after == {"value": 512, "from": "settings"}


def test_a_dry_run_shows_what_would_hold_and_changes_nothing(run_dir: Path, s3: S3) -> None:
    would = _json("set", "dry", "--enqueued-tokens", "9", "--dry-run", run_dir=run_dir)

    assert (would["dry_run"], would["set"]) == (True, {"enqueued_tokens": 9})
    assert _ask(run_dir, lambda state: state.tenants.all()).keys() & {"dry"} == set()
    assert _stored(s3, "tenants/dry.json") is None


def test_tenants_are_listed_with_what_they_use(run_dir: Path) -> None:
    _json("set", "listed", "--event-streams", "5", run_dir=run_dir)

    async def use(state: State) -> None:
        await state.keys.create("keyed")
        await state.streams.open(Stream("listed", "a"), limit=5, seconds=60)

    _ask(run_dir, use)
    found = {one["tenant"]: one for one in _json("ls", run_dir=run_dir)}

    assert found["listed"]["set"] == {"event_streams": 5}
    assert (found["listed"]["keys"], found["keyed"]["keys"]) == (0, 1)
    assert found["listed"]["used"]["event_streams"] == 1
    assert found["keyed"]["used"]["stored_bytes"] == 0


def test_people_read_the_same_as_programs(run_dir: Path) -> None:
    set_ = _run("set", "people", "--stored-bytes", "12345", "--model", "m", run_dir=run_dir).stdout
    shown = _run("show", "people", run_dir=run_dir).stdout
    listed = _run("ls", run_dir=run_dir).stdout

    assert set_.splitlines()[0] == "set  people"
    assert "stored_bytes  12,345" in set_
    rows = {line.split()[0]: line.split() for line in shown.splitlines()}
    assert rows["stored_bytes"] == ["stored_bytes", "12,345", "tenant", "0"]
    assert rows["models"][:3] == ["models", "m", "tenant"]
    assert rows["enqueued_requests"][:3] == ["enqueued_requests", "1,000,000", "settings"]
    assert any(line.startswith("people ") for line in listed.splitlines())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["set", "acme"], "Nothing to set"),
        (["set", "--weight", "2"], "Name a tenant, or give --default"),
        (["set", "acme", "--default", "--event-streams", "2"], "Name a tenant, or give --default"),
        (["set", "No Spaces", "--weight", "2"], "No Spaces"),
        (["set", "--default", "--weight", "2"], "not with --default"),
        (["set", "acme", "--weight", "0"], "weight: above 0"),
        (["set", "acme", "--weight", "nan"], "weight: above 0"),
        (["set", "acme", "--batches-per-hour", "0"], "batches_per_hour: from 1 to"),
        (["set", "acme", "--stored-bytes", "-1"], "stored_bytes: from 0 to"),
        (["set", "acme", "--webhook-endpoints", "51"], "webhook_endpoints: from 0 to 50"),
        (["set", "acme", "--custom-id-characters", "513"], "custom_id_characters: from 1 to 512"),
        (["set", "acme", "--unset", "colour"], "'colour' is not a setting of a tenant"),
        (["set", "acme", "--weight", "2", "--unset", "weight"], "both set and unset"),
        (["set", "acme", "--model", ""], "models: name at least one model"),
        (["show"], "Name a tenant, or give --default"),
    ],
)
def test_what_is_wrong_is_said_in_one_message(
    arguments: list[str], said: str, run_dir: Path
) -> None:
    with pytest.raises(InvalidInputError, match=said):
        _run(*arguments, run_dir=run_dir)


def _run(*arguments: str, run_dir: Path) -> Result:
    result = CliRunner().invoke(app, ["tenants", *arguments, "--run-dir", str(run_dir)])
    if isinstance(result.exception, BatchyardError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def _json(*arguments: str, run_dir: Path) -> Any:
    return json.loads(_run(*arguments, "--json", run_dir=run_dir).stdout)


def _stored(s3: S3, key: str) -> Any:
    async def read() -> Any:
        storage = Storage(*s3, "tenants")
        try:
            if not await storage.keys(key):
                return None
            found = json.loads(await storage.get(key))
            del found["seal"]
            return found
        finally:
            storage.close()

    return asyncio.run(read())


def _ask(run_dir: Path, question: Callable[[State], Awaitable[T]]) -> T:
    async def ask() -> T:
        password = read_credentials(run_dir).redis_password
        state = State(servers.Redis(run_dir / "redis", password).url)
        try:
            return await question(state)
        finally:
            await state.close()

    return asyncio.run(ask())
