"""`batchyard dead-letters rows` on real servers: listed without a prompt, run again, dropped."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
from typer.testing import CliRunner, Result

from cli import servers
from cli.__main__ import app
from shared.errors import InvalidInputError, NotFoundError, SetupError
from shared.lifecycle import Event
from shared.state import State
from shared.storage import Storage
from tests.batches import claimed, dead_row, part
from tests.servers import S3

T = TypeVar("T")

_SECRET = "the treasure lies under the old oak"
_FIRST = b'{"custom_id": "a", "body": 1}'
_REQUEST = json.dumps({"custom_id": "b", "body": {"prompt": _SECRET}}).encode()


@pytest.fixture
def environment(redis_server: servers.Redis, s3: S3, storage: Storage) -> dict[str, str]:
    """Where the fleet is, as its processes have it."""
    return {
        "BATCHYARD_REDIS_URL": redis_server.url,
        "BATCHYARD_S3_ENDPOINT": s3.endpoint,
        "BATCHYARD_S3_ACCESS_KEY": s3.access_key,
        "BATCHYARD_S3_SECRET_KEY": s3.secret_key,
        "BATCHYARD_S3_BUCKET": storage.bucket,
    }


@pytest.fixture
def given_up(environment: dict[str, str], storage: Storage) -> list[str]:
    """The ids of two dead rows: the second line of one tenant's batch, and another tenant's."""

    return _act(environment, lambda state: _given_up(state, storage, "files/in", "acme", "globex"))


def test_rows_are_listed_and_shown_with_their_place_and_without_their_text(
    environment: dict[str, str], given_up: list[str]
) -> None:
    first, second = given_up

    listed = _json("ls", environment=environment)
    shown = _json("show", first, environment=environment)

    assert [row["id"] for row in listed] == [first, second]
    assert shown == listed[0]
    names = ("tenant", "line", "custom_id", "deaths", "reason", "place")
    assert [shown[name] for name in names] == ["acme", 2, "b", 4, "The engine died.", 1]
    assert [row["id"] for row in _json("ls", "--tenant", "globex", environment=environment)] == [
        second
    ]
    mine = _json("ls", "--batch", shown["batch_id"], environment=environment)
    assert [row["id"] for row in mine] == [first]
    assert len(_json("ls", "--limit", "1", environment=environment)) == 1
    for words in ([], ["--json"], ["ls"], ["show", first], ["ls", "--json"]):
        output = _run(*words, environment=environment).output
        assert first in output
        assert "2026-11-20" in output or "1795165000" in output
        assert _SECRET not in output


def test_a_replay_is_a_batch_of_the_one_request(
    environment: dict[str, str], given_up: list[str], storage: Storage
) -> None:
    first, second = given_up

    made = _json("replay", first, environment=environment)["replayed"]

    async def look(state: State) -> tuple[Any, bytes]:
        batch = await state.batches.get(made[first])
        start, end = batch.input_range
        return batch, await storage.get(batch.fields["key"], start=start, end=end)

    batch, body = _act(environment, look)
    assert body == _REQUEST + b"\n"
    assert (batch.tenant, batch.status) == ("acme", "validating")
    assert list(json.loads(batch.fields["metadata"])) == ["retry_of"]
    # So that it runs with nothing else in the engine.
    assert batch.number("strikes") == 2
    assert [row["id"] for row in _json("ls", environment=environment)] == [second]
    with pytest.raises(NotFoundError, match=first):
        _run("replay", first, environment=environment)


def test_of_all_rows_those_that_cannot_be_replayed_are_named_and_hold_up_no_other_one(
    environment: dict[str, str], given_up: list[str], storage: Storage
) -> None:
    first, second = given_up
    [third] = _act(environment, lambda state: _given_up(state, storage, "files/gone", "acme"))
    [last] = _act(environment, lambda state: _given_up(state, storage, "files/other", "acme"))
    lost = _json("show", second, environment=environment)["batch_id"]
    _act(environment, lambda state: _forget(state, lost))
    asyncio.run(storage.remove(["files/gone"]))

    result = _invoke("replay", "--all", "--json", environment=environment)
    report = json.loads(result.stdout)
    again = _invoke("replay", "--all", environment=environment)

    assert (result.exit_code, again.exit_code) == (1, 1)
    assert list(report["replayed"]) == [first, last]
    assert list(report["failed"]) == [second, third]
    assert lost in report["failed"][second]
    assert "was deleted or changed" in report["failed"][third]
    assert all("drop" in reason for reason in report["failed"].values())
    assert [row["id"] for row in _json("ls", environment=environment)] == [second, third]
    assert again.stdout == ""
    assert [line.split()[:2] for line in again.stderr.splitlines()] == [
        ["failed", second],
        ["failed", third],
    ]


def test_with_s3_away_what_was_written_is_announced_and_the_rest_waits(
    environment: dict[str, str], given_up: list[str]
) -> None:
    nowhere = {**environment, "BATCHYARD_S3_ENDPOINT": "http://127.0.0.1:1"}

    result = _invoke("replay", "--all", "--json", environment=nowhere)

    report = json.loads(result.stdout)
    assert (result.exit_code, report["replayed"]) == (1, {})
    assert list(report["failed"]) == given_up[:1]
    assert "not tried" in report["failed"][given_up[0]]
    assert len(_json("ls", environment=environment)) == 2


def test_rows_are_dropped_one_by_one_or_all(
    environment: dict[str, str], given_up: list[str]
) -> None:
    first, second = given_up

    assert _json("drop", first, "--yes", environment=environment) == {"dropped": [first]}
    assert _json("drop", "--all", "--yes", environment=environment) == {"dropped": [second]}

    assert _json("ls", environment=environment) == []
    assert "There are no dead rows." in _run("drop", "--all", "-y", environment=environment).output


def test_what_is_missing_is_said(
    environment: dict[str, str],
    given_up: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(InvalidInputError, match="give --all"):
        _run("replay", environment=environment)
    with pytest.raises(NotFoundError, match="batch_req_x"):
        _run("show", "batch_req_x", environment=environment)
    # In this folder no fleet has run that would say where S3 is.
    monkeypatch.chdir(tmp_path)
    without = {name: text for name, text in environment.items() if "S3" not in name}
    with pytest.raises(SetupError, match="BATCHYARD_S3_ENDPOINT"):
        _run("replay", "--all", environment=without)


async def _given_up(state: State, storage: Storage, key: str, *tenants: str) -> list[str]:
    """The dead rows of new batches of one input, one of each tenant."""
    stored = await storage.put(key, _FIRST + b"\n\n" + _REQUEST + b"\n")
    place = {"bucket": storage.bucket, "key": key, "etag": stored.etag}
    rows = []
    for tenant in tenants:
        [claim] = await claimed(state, slices=1, tenant=tenant, **place)
        row = dead_row(claim, 1, custom_id="b", end=stored.size)
        await state.claims.commit(claim, part(claim, failed=1), dead=[row])
        rows.append(row.id)
    return rows


async def _forget(state: State, batch_id: str) -> None:
    await state.apply(batch_id, Event.OUTPUT_COMMITTED)
    await state.batches.forget([batch_id])


def _act(environment: dict[str, str], work: Callable[[State], Awaitable[T]]) -> T:
    async def run() -> T:
        state = State(environment["BATCHYARD_REDIS_URL"])
        try:
            return await work(state)
        finally:
            await state.close()

    return asyncio.run(run())


def _json(*words: str, environment: dict[str, str]) -> Any:
    return json.loads(_run(*words, "--json", environment=environment).stdout)


def _run(*words: str, environment: dict[str, str]) -> Result:
    result = _invoke(*words, environment=environment)
    if result.exception is not None:
        raise result.exception
    return result


def _invoke(*words: str, environment: dict[str, str]) -> Result:
    return CliRunner().invoke(app, ["dead-letters", "rows", *words], env=environment)
