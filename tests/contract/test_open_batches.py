"""Open batches on real processes: requests come while others run, and end as one output."""

from tests.contract.conftest import MODEL, Caller, ServiceYard, batch_params, row
from tests.eventually import wait_until


def _opened(acme: Caller) -> str:
    params = {**batch_params(""), "open": True, "model": MODEL}
    del params["input_file_id"]
    answer = acme.http.post("/v1/batches", json=params)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


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
