"""Answers that are given again, on real processes: by HTTP, by the commands and from Python."""

import json
from pathlib import Path
from typing import Any

import pytest

import batchyard
from tests.contract.conftest import MODEL, Caller, batch_params, row
from tests.contract.user_commands import Command


def _run(acme: Caller, *names: str, **more: Any) -> list[dict[str, Any]]:
    """The result lines of a batch over these rows."""
    file_id = acme.upload(b"".join(row(name, name) for name in names))
    answer = acme.http.post("/v1/batches", json={**batch_params(file_id), **more})
    assert answer.status_code == 200, answer.text
    acme.made.append(answer.json()["id"])
    ended = acme.until(acme.made[-1], "completed", timeout=60)
    return acme.lines(ended["output_file_id"])


def _cached(lines: list[dict[str, Any]]) -> list[str]:
    return [line["custom_id"] for line in lines if line.get("cached")]


def test_rows_that_were_answered_are_given_their_answers_again(acme: Caller) -> None:
    first = _run(acme, "a", "b", cache=True)
    second = _run(acme, "b", "c", cache={"seconds": 60})
    without = _run(acme, "a")

    assert (_cached(first), _cached(second), _cached(without)) == ([], ["b"], [])
    assert [acme.batch(one).get("cached") for one in acme.made[-3:]] == [None, 1, None]
    assert second[0]["response"]["body"] == first[1]["response"]["body"]
    cleared = acme.http.delete("/v1/cache").json()
    assert cleared == {"object": "cache", "deleted": True, "rows": 3}
    assert _cached(_run(acme, "a", cache=True)) == []
    acme.http.delete("/v1/cache")


@pytest.mark.parametrize("cache", [{"seconds": 0}, {"days": 1}, "yes", 1])
def test_what_is_no_wish_for_a_cache_is_refused(acme: Caller, cache: object) -> None:
    file_id = acme.upload(row("a"))

    refused = acme.http.post("/v1/batches", json={**batch_params(file_id), "cache": cache})

    assert refused.status_code == 400
    assert refused.json()["error"]["param"].partition(".")[0] == "cache"


def test_an_open_batch_has_none(acme: Caller) -> None:
    params = {**batch_params(""), "open": True, "model": MODEL, "cache": True}
    del params["input_file_id"]

    refused = acme.http.post("/v1/batches", json=params)

    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "cache")


def test_the_commands_do_the_same(acme: Caller, tmp_path: Path) -> None:
    command = Command(acme, tmp_path)
    command.file("a.jsonl", row("a"))

    def run(*options: str) -> list[dict[str, Any]]:
        found = command("run", "a.jsonl", "--again", *options)
        return [json.loads(line) for line in found.out.splitlines()]

    assert _cached(run("--cache")) == []
    assert _cached(run("--cache")) == ["a"]
    [cleared] = command("cache", "clear").records()
    assert cleared["rows"] == 1
    assert _cached(run("--cache")) == []
    acme.http.delete("/v1/cache")


def test_python_does_the_same(acme: Caller) -> None:
    options: batchyard.Options = {
        "base_url": f"{acme.yard.url}/v1",
        "api_key": acme.key,
        "model": MODEL,
        "progress": False,
        "again": True,
        "cache": True,
    }
    first = batchyard.run([{"text": "a"}], "{{ text }}", **options)
    second = batchyard.run([{"text": "a"}, {"text": "b"}], "{{ text }}", **options)

    assert [one["answer"] for one in (*first, *second)] == ["A", "A", "B"]
    assert acme.http.delete("/v1/cache").json()["rows"] == 2
