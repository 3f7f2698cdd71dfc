"""`batchyard keys` on the Redis of a run directory, found as `batchyard up` leaves it."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from typer.testing import CliRunner, Result

from cli import servers
from cli.__main__ import app
from cli.fleet.credentials import read_credentials
from shared.errors import BatchyardError, InvalidInputError, NotFoundError, SetupError
from shared.state import Admission, Rate, State
from tests.servers import S3

T = TypeVar("T")

_MINUTE = Rate("requests", 100, 60)


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
    """No Redis but the folder's, and a bucket where the keys are kept."""
    monkeypatch.delenv("BATCHYARD_REDIS_URL", raising=False)
    options = zip(("ENDPOINT", "ACCESS_KEY", "SECRET_KEY"), s3, strict=True)
    for name, text in (*options, ("BUCKET", "keys")):
        monkeypatch.setenv(f"BATCHYARD_S3_{name}", text)


def test_a_key_is_made_shown_once_used_listed_and_revoked(run_dir: Path) -> None:
    made = _json("create", "--tenant", "acme", "--name", "nightly job", run_dir=run_dir)
    key, key_id = made["key"], made["id"]

    before = _ask(run_dir, lambda state: state.keys.admit(key, [_MINUTE]))
    [listed] = _json("list", "--tenant", "acme", run_dir=run_dir)
    revoked = _json("revoke", key_id, run_dir=run_dir)
    after = _ask(run_dir, lambda state: state.keys.admit(key, [_MINUTE]))
    [late] = _json("list", "--tenant", "acme", run_dir=run_dir)

    assert isinstance(before, Admission)
    assert before.tenant == "acme"
    assert after is None
    assert (listed["id"], listed["tenant"], listed["name"]) == (key_id, "acme", "nightly job")
    assert key.startswith(listed["prefix"])
    assert key not in json.dumps(listed)
    assert listed["last_used"] is not None
    assert (listed["expires_at"], listed["scopes"]) == (None, ["read", "submit", "live", "admin"])
    assert (listed["revoked_at"], late["revoked_at"] is not None) == (None, True)
    assert revoked == {"id": key_id, "revoked": True, "was_revoked": False}
    assert _json("revoke", key_id, run_dir=run_dir)["was_revoked"]


def test_people_read_the_same_as_programs(run_dir: Path) -> None:
    made = _run("create", "--tenant", "globex", run_dir=run_dir)
    key = made.stdout.split()[1]
    table = _run("list", run_dir=run_dir).stdout

    assert "Keep it now" in made.stderr
    assert key not in table
    [row] = [line for line in table.splitlines() if " globex " in line]
    key_id = row.split()[0]
    assert key[:17] in row
    assert table.startswith("ID ")
    assert key_id in _run("revoke", key_id, run_dir=run_dir).stdout
    assert "already" in _run("revoke", key_id, run_dir=run_dir).stdout


def test_a_key_is_changed_and_the_trail_has_each_act(run_dir: Path) -> None:
    trail = run_dir / "trail.jsonl"
    trail.unlink(missing_ok=True)
    made = _json(
        "create", "--tenant", "acme", "--expires", "90d", "--scope", "read", run_dir=run_dir
    )
    key_id = made["id"]

    changed = _json("set", key_id, "--scope", "submit", "--scope", "read", run_dir=run_dir)
    never = _json("set", key_id, "--expires", "never", run_dir=run_dir)
    dated = _json("set", key_id, "--expires", "2100-01-01", run_dir=run_dir)
    _json("revoke", key_id, run_dir=run_dir)
    with pytest.raises(NotFoundError):
        _json("revoke", "key_none", run_dir=run_dir)

    days = (made["expires_at"] - time.time()) / 86_400
    assert 89.9 < days <= 90
    assert (made["scopes"], changed["scopes"]) == (["read"], ["read", "submit"])
    assert changed["expires_at"] == made["expires_at"]
    assert (never["expires_at"], dated["expires_at"]) == (None, 4_102_444_800)
    assert never["scopes"] == ["read", "submit"]
    lines = [json.loads(line) for line in trail.read_text().splitlines()]
    assert [(line["act"], line["result"], line.get("object")) for line in lines] == [
        ("key.created", "done", key_id),
        *[("key.changed", "done", key_id)] * 3,
        ("key.revoked", "done", key_id),
        ("key.revoked", "refused", "key_none"),
    ]
    assert lines[0]["tenant"] == "acme"
    assert made["key"] not in trail.read_text()


def test_the_url_goes_before_the_folder(run_dir: Path, tmp_path: Path) -> None:
    url = _url(run_dir)

    made = _json("create", "--tenant", "by-url", "--redis-url", url, run_dir=tmp_path)

    assert made["id"] in [one["id"] for one in _json("list", run_dir=run_dir)]


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        (["create", "--tenant", "No Spaces"], InvalidInputError, "--tenant No Spaces"),
        (["create", "--tenant", "acme", "--name", "a\nb"], InvalidInputError, "--name"),
        (["revoke", "key_none"], NotFoundError, "key_none"),
        (["set", "key_none", "--scope", "read"], NotFoundError, "key_none"),
        (["set", "key_none"], InvalidInputError, "Nothing to set"),
        (["set", "key_none", "--scope", "write"], InvalidInputError, "--scope write"),
        (["set", "key_none", "--expires", "soon"], InvalidInputError, "--expires soon"),
        (["set", "key_none", "--expires", "2020-01-01"], InvalidInputError, "has passed"),
        (["list", "--redis-url", "localhost"], SetupError, "not a Redis URL"),
        (["list", "--redis-url", "redis://127.0.0.1:1/0"], SetupError, "does not answer"),
    ],
)
def test_what_is_wrong_is_said_in_one_message(
    arguments: list[str], error: type[BatchyardError], said: str, run_dir: Path
) -> None:
    with pytest.raises(error, match=said):
        _run(*arguments, run_dir=run_dir)


def test_without_an_s3_no_key_is_made(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BATCHYARD_S3_ENDPOINT")

    with pytest.raises(SetupError, match="BATCHYARD_S3_ENDPOINT"):
        _run("create", "--tenant", "nowhere", run_dir=run_dir)

    assert _json("list", "--tenant", "nowhere", run_dir=run_dir) == []


def test_without_a_fleet_it_says_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="--run-dir, or set BATCHYARD_REDIS_URL"):
        _run("list", run_dir=tmp_path)

    assert list(tmp_path.iterdir()) == []


def _run(*arguments: str, run_dir: Path) -> Result:
    result = CliRunner().invoke(app, ["keys", *arguments, "--run-dir", str(run_dir)])
    if result.exception is not None:
        raise result.exception
    return result


def _json(*arguments: str, run_dir: Path) -> Any:
    return json.loads(_run(*arguments, "--json", run_dir=run_dir).stdout)


def _url(run_dir: Path) -> str:
    return servers.Redis(run_dir / "redis", read_credentials(run_dir).redis_password).url


def _ask(run_dir: Path, question: Callable[[State], Awaitable[T]]) -> T:
    async def ask() -> T:
        state = State(_url(run_dir))
        try:
            return await question(state)
        finally:
            await state.close()

    return asyncio.run(ask())
