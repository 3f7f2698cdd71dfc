"""Open batches on real processes: requests come while others run, and end as one output."""

import json
from pathlib import Path

from tests.contract.conftest import MODEL, Caller, ServiceYard, batch_params, row
from tests.contract.user_commands import Command
from tests.eventually import wait_until


def _opened(acme: Caller) -> str:
    params = {**batch_params(""), "open": True, "model": MODEL}
    del params["input_file_id"]
    answer = acme.http.post("/v1/batches", json=params)
    assert answer.status_code == 200, answer.text
    acme.made.append(answer.json()["id"])
    return acme.made[-1]


def _add(acme: Caller, batch_id: str, *names: str) -> None:
    body = b"".join(map(row, names))
    answer = acme.http.post(f"/v1/batches/{batch_id}/requests", content=body)
    assert answer.status_code == 200, answer.text


def test_requests_are_run_as_they_come(acme: Caller) -> None:
    batch_id = _opened(acme)
    _add(acme, batch_id, "a", "b")

    def completed() -> int:
        batch = acme.batch(batch_id)
        assert (batch["status"], batch["open"]) == ("in_progress", True)
        return int(batch["request_counts"]["completed"])

    wait_until(lambda: completed() == 2, timeout=60)
    _add(acme, batch_id, "c")
    wait_until(lambda: completed() == 3, timeout=60)
    acme.http.post(f"/v1/batches/{batch_id}/close").raise_for_status()
    ended = acme.until(batch_id, "completed", timeout=60)

    assert [line["custom_id"] for line in acme.lines(ended["output_file_id"])] == ["a", "b", "c"]
    assert [line["custom_id"] for line in acme.lines(ended["input_file_id"])] == ["a", "b", "c"]


def test_one_that_nobody_closes_ends_with_its_window(yard: ServiceYard, acme: Caller) -> None:
    batch_id = _opened(acme)
    _add(acme, batch_id, "a")
    wait_until(lambda: acme.batch(batch_id)["request_counts"]["completed"] == 1, timeout=60)

    yard.close_window(batch_id)

    ended = acme.until(batch_id, "completed", "expired", timeout=60)
    assert ended["status"] == "completed"


def test_the_commands_do_the_same(acme: Caller, tmp_path: Path) -> None:
    batchyard = Command(acme, tmp_path)
    batchyard.file("first.jsonl", row("a") + row("b"))
    batchyard.file("all.jsonl", row("a") + row("b") + row("c"))
    batchyard.file("other.jsonl", row("c", "something else"))

    [opened] = batchyard("open", MODEL).records()
    batch_id = opened["id"]
    acme.made.append(batch_id)
    [first] = batchyard("add", batch_id, "first.jsonl").records()
    [all_of_them] = batchyard("add", batch_id, "all.jsonl").records()
    refused = batchyard("add", batch_id, "other.jsonl")
    closed = batchyard("close", batch_id, "--wait")
    fetched = batchyard("fetch", batch_id)

    assert (first["added"], first["repeated"], first["total"]) == (2, 0, 2)
    assert (all_of_them["added"], all_of_them["repeated"], all_of_them["total"]) == (1, 2, 3)
    assert refused.code != 0
    assert "line 1" in refused.err
    assert closed.records()[0]["status"] == "completed"
    names = [json.loads(line)["custom_id"] for line in fetched.out.splitlines()]
    assert names == ["a", "b", "c"]
