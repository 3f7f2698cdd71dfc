"""OpenAI's contract for batches and their results."""

import json
import threading
from itertools import pairwise
from typing import Any

import pytest
from openai import ConflictError

from tests.contract.conftest import (
    MODEL,
    OTHER_MODEL,
    Caller,
    ServiceYard,
    batch_params,
    custom_ids,
    row,
    rows,
)
from tests.contract.engine import REFUSE, WAIT
from tests.eventually import wait_until

KEYS = {
    "id",
    "object",
    "endpoint",
    "model",
    "errors",
    "input_file_id",
    "completion_window",
    "status",
    "output_file_id",
    "error_file_id",
    "created_at",
    "in_progress_at",
    "expires_at",
    "finalizing_at",
    "completed_at",
    "failed_at",
    "expired_at",
    "cancelling_at",
    "cancelled_at",
    "request_counts",
    "usage",
    "metadata",
}
NO_USAGE = {
    "input_tokens": 0,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 0,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 0,
}


def test_every_key_is_sent_from_the_first_to_the_last(acme: Caller) -> None:
    new = acme.create(rows("one", "two"))
    ended = acme.until(new["id"], "completed")

    assert set(new) == set(ended) == KEYS
    assert (new["status"], new["model"], new["errors"]) == ("validating", None, None)
    assert new["expires_at"] == new["created_at"] + 86_400
    assert new["request_counts"] == {"total": 0, "completed": 0, "failed": 0}
    assert new["usage"] == NO_USAGE
    assert ended["model"] == MODEL
    assert ended["request_counts"] == {"total": 2, "completed": 2, "failed": 0}
    assert ended["usage"] == {
        "input_tokens": 6,
        "input_tokens_details": {"cached_tokens": 2},
        "output_tokens": 4,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 10,
    }


def test_pages_are_newest_first_exact_and_stable_while_batches_come(acme: Caller) -> None:
    file_id = acme.upload(rows("hello"))

    def create() -> str:
        made: str = acme.http.post("/v1/batches", json=batch_params(file_id)).json()["id"]
        return made

    made = [create() for _ in range(7)]
    seen, after, sizes = [], None, []
    while True:
        page = acme.http.get(
            "/v1/batches", params={"limit": 2, **({"after": after} if after else {})}
        ).json()
        seen += [batch["id"] for batch in page["data"]]
        sizes.append(len(page["data"]))
        assert page["first_id"] == page["data"][0]["id"]
        assert page["last_id"] == page["data"][-1]["id"]
        after = page["last_id"]
        if not page["has_more"]:
            break
        create()

    assert seen == made[::-1]
    assert sizes == [2, 2, 2, 1]


@pytest.mark.parametrize("path", ["/v1/batches", "/v1/files"])
@pytest.mark.parametrize("query", ["limit=0", "after=after"])
def test_a_limit_of_zero_and_an_unknown_cursor_are_answered(
    path: str, query: str, acme: Caller
) -> None:
    answer = acme.http.get(f"{path}?{query}")

    assert answer.status_code == 200
    assert answer.json() == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


@pytest.mark.parametrize(("path", "maximum"), [("/v1/batches", 100), ("/v1/files", 10_000)])
def test_a_limit_above_the_maximum_is_refused(path: str, maximum: int, acme: Caller) -> None:
    fine = acme.http.get(path, params={"limit": maximum})
    refused = acme.http.get(path, params={"limit": maximum + 1})

    assert fine.status_code == 200
    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "integer_above_max_value"
    assert refused.json()["error"]["message"] == (
        f"Invalid 'limit': integer above maximum value. Expected a value <= {maximum}, "
        f"but got {maximum + 1} instead."
    )


def _without(field: str) -> bytes:
    request = json.loads(row("without"))
    del request[field]
    return json.dumps(request).encode() + b"\n"


def _body(custom_id: str, body: dict[str, Any]) -> bytes:
    return row(custom_id, body=body)


MESSAGES = [{"role": "user", "content": "hello"}]
#: A bad line, and how it is reported: code, param, message.
BAD_LINES: dict[str, tuple[bytes, str, str | None, str]] = {
    "no JSON": (
        b"{not json\n",
        "invalid_json_line",
        None,
        "This line is not parseable as valid JSON.",
    ),
    **{
        f"no {field}": (
            _without(field),
            "missing_required_parameter",
            field,
            f"Missing required parameter: '{field}'.",
        )
        for field in ("custom_id", "method", "url", "body")
    },
    "another url": (
        row("another-url", url="/v1/embeddings"),
        "invalid_url",
        "url",
        "The URL provided for this request does not match the batch endpoint.",
    ),
    "another method": (
        row("another-method", method="GET"),
        "invalid_method",
        "method",
        "Invalid value: 'GET'. Supported values are: 'POST'.",
    ),
    "unknown model": (
        row("unknown-model", model="gpt-none"),
        "model_not_found",
        "body.model",
        "The provided model 'gpt-none' is not supported by the Batch API.",
    ),
    "no model": (
        _body("no-model", {"messages": MESSAGES}),
        "invalid_request",
        "body.model",
        "Model parameter is required.",
    ),
    "no messages": (
        _body("no-messages", {"model": MODEL}),
        "invalid_request",
        "body.messages",
        "Messages parameter is required.",
    ),
    "another model": (
        row("another-model", model=OTHER_MODEL),
        "mismatched_model",
        "body.model",
        f"The model '{OTHER_MODEL}' for this request does not match the rest of the batch. Each "
        "batch must contain requests for a single model.",
    ),
    "a twin": (
        row("row-0"),
        "duplicate_custom_id",
        "custom_id",
        "The custom_id 'row-0' for this request is a duplicate of another request. The custom_id "
        "parameter must be unique for each request in a batch.",
    ),
}


def test_each_bad_line_has_its_code_and_its_number(acme: Caller) -> None:
    batch = acme.run(rows("one") + b"".join(line for line, *_ in BAD_LINES.values()))

    assert batch["errors"] == {
        "object": "list",
        "data": [
            {"code": code, "line": number, "message": message, "param": param}
            for number, (_, code, param, message) in enumerate(BAD_LINES.values(), start=2)
        ],
    }
    assert batch["status"] == "failed"
    assert batch["failed_at"] is not None
    assert (batch["output_file_id"], batch["error_file_id"]) == (None, None)


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        (
            b"",
            "empty_file",
            "The input file is empty. Please ensure that the batch contains at least one request.",
        ),
        (
            rows(*["x"] * 1001),
            "too_many_tasks",
            "The input file has more than 1000 requests, the limit.",
        ),
    ],
    ids=["empty", "too many"],
)
def test_what_is_wrong_with_the_whole_file_has_no_line(
    body: bytes, code: str, message: str, acme: Caller
) -> None:
    batch = acme.run(body)

    assert batch["status"] == "failed"
    assert batch["errors"]["data"] == [
        {"code": code, "line": None, "message": message, "param": None}
    ]


def test_statuses_counts_and_times_only_go_forward(acme: Caller, yard: ServiceYard) -> None:
    seen: list[dict[str, Any]] = []
    new = acme.create(rows("one", "two", WAIT, "four", "five", "six"))

    def watch() -> None:
        while not seen or seen[-1]["status"] != "completed":
            seen.append(acme.batch(new["id"]))

    watcher = threading.Thread(target=watch)
    watcher.start()
    # All slices but the one that waits.
    wait_until(lambda: bool(seen) and seen[-1]["request_counts"]["completed"] == 4)
    yard.engine.release(new["id"])
    watcher.join(20)

    order = ["validating", "in_progress", "finalizing", "completed"]
    places = [order.index(batch["status"]) for batch in seen]
    assert places == sorted(places)
    counts = [batch["request_counts"]["completed"] for batch in seen]
    assert counts == sorted(counts)
    times = ("created_at", "in_progress_at", "finalizing_at", "completed_at")
    for before, after in pairwise(seen):
        # What has been set stays as it is.
        assert all(after[name] == before[name] for name in times if before[name] is not None)
    for batch in seen:
        known = [batch[name] for name in times if batch[name] is not None]
        assert known == sorted(known)
        assert (batch["output_file_id"] is not None) == (batch["status"] == "completed")
    assert None not in [seen[-1][name] for name in times]


def test_every_custom_id_has_one_line_in_one_of_the_files(acme: Caller) -> None:
    says = [REFUSE if number % 3 == 1 else f"row {number}" for number in range(30)]

    batch = acme.run(rows(*says))

    output, error = acme.lines(batch["output_file_id"]), acme.lines(batch["error_file_id"])
    assert [one["custom_id"] for one in output] == [
        f"row-{number}" for number in range(30) if says[number] != REFUSE
    ]
    assert [one["custom_id"] for one in error] == [
        f"row-{number}" for number in range(30) if says[number] == REFUSE
    ]
    assert batch["request_counts"] == {"total": 30, "completed": len(output), "failed": len(error)}
    ids = [one["id"] for one in output + error]
    assert len(set(ids)) == 30
    assert all(one.startswith("batch_req_") for one in ids)
    answers = {one["custom_id"]: one["response"]["body"]["choices"][0]["message"] for one in output}
    assert answers["row-5"]["content"] == "ROW 5"


def test_a_refused_row_has_its_http_error_and_no_other(acme: Caller) -> None:
    batch = acme.run(rows("one", REFUSE))

    (line,) = acme.lines(batch["error_file_id"])
    assert line == {
        "id": line["id"],
        "custom_id": "row-1",
        "response": {
            "status_code": 400,
            "request_id": line["response"]["request_id"],
            "body": {
                "error": {
                    "message": "This model's maximum context length is 8 tokens.",
                    "type": "invalid_request_error",
                    "param": "messages",
                    "code": "context_length_exceeded",
                }
            },
        },
        "error": None,
    }
    assert len(line["response"]["request_id"]) == 32


def test_rows_that_did_not_run_in_time_are_expired(acme: Caller, yard: ServiceYard) -> None:
    new = acme.create(rows("one", "two", "three", WAIT, WAIT, REFUSE))
    _until_done(acme, new["id"], 2)

    yard.close_window(new["id"])
    batch = acme.until(new["id"], "expired")

    output, error = acme.lines(batch["output_file_id"]), acme.lines(batch["error_file_id"])
    assert batch["expired_at"] is not None
    assert [one["custom_id"] for one in output][:2] == ["row-0", "row-1"]
    lines = {one["custom_id"]: one for one in (*output, *error)}
    assert sorted(lines) == [f"row-{number}" for number in range(6)]
    expired = {
        "code": "batch_expired",
        "message": "This request could not be executed before the completion window expired.",
    }
    waited = [lines["row-3"], lines["row-4"]]
    assert [(one["error"], one["response"]) for one in waited] == [(expired, None)] * 2
    # What shared a slice with a row that waited is kept, if its lane job records it in a second.
    for name in ("row-2", "row-5"):
        assert lines[name]["error"] in (None, expired)
    counts = {"total": 6, "completed": len(output), "failed": len(error)}
    assert batch["request_counts"] == counts


def test_rows_that_did_not_run_are_cancelled(acme: Caller) -> None:
    new = acme.create(rows("one", "two", WAIT, WAIT))
    _until_done(acme, new["id"], 2)

    acme.openai.batches.cancel(new["id"])
    batch = acme.until(new["id"], "cancelled")

    output, error = acme.lines(batch["output_file_id"]), acme.lines(batch["error_file_id"])
    assert [one["custom_id"] for one in output] == ["row-0", "row-1"]
    assert [one["custom_id"] for one in error] == ["row-2", "row-3"]
    assert {one["error"]["code"] for one in error} == {"batch_cancelled"}
    assert [one["response"] for one in error] == [None, None]


@pytest.mark.parametrize("status", ["validating", "finalizing"])
def test_a_batch_is_cancelled_before_and_after_its_rows(
    status: str, acme: Caller, yard: ServiceYard
) -> None:
    if status == "validating":
        yard.dispatcher.freeze()
        new = acme.create(rows("one"))
    else:
        new = acme.create(rows(WAIT))
        acme.until(new["id"], "in_progress")
        # Slices that are ready are claimed without the dispatcher.
        _until_claimed(yard, new["id"], slices=1)
        yard.dispatcher.freeze()
        yard.engine.release(new["id"])
    try:
        acme.until(new["id"], status)
        asked = acme.http.post(f"/v1/batches/{new['id']}/cancel")
    finally:
        yard.dispatcher.thaw()

    assert asked.status_code == 200
    assert asked.json()["status"] == "cancelling"
    batch = acme.until(new["id"], "cancelled")
    finished = 1 if status == "finalizing" else 0
    assert len(acme.lines(batch["output_file_id"])) == finished
    assert batch["request_counts"]["completed"] == finished


def test_the_sdk_does_not_try_a_refused_cancel_again(acme: Caller) -> None:
    batch = acme.run(rows("one"))
    patient = acme.openai.with_options(max_retries=2)

    with pytest.raises(ConflictError, match="Cannot cancel a batch with status 'completed'") as no:
        patient.batches.cancel(batch["id"])

    assert no.value.response.request.headers["x-stainless-retry-count"] == "0"


def test_a_batch_whose_rows_all_fail_completes_without_output(acme: Caller) -> None:
    batch = acme.run(rows(REFUSE, REFUSE, REFUSE))

    assert batch["status"] == "completed"
    assert batch["output_file_id"] is None
    assert [one["custom_id"] for one in acme.lines(batch["error_file_id"])] == custom_ids(3)
    assert batch["request_counts"] == {"total": 3, "completed": 0, "failed": 3}


def test_a_clean_batch_has_no_error_file(acme: Caller) -> None:
    batch = acme.run(rows("one"))

    assert (batch["status"], batch["error_file_id"]) == ("completed", None)
    listed = acme.openai.files.list(purpose="batch_output")
    assert [file.id for file in listed] == [batch["output_file_id"]]


@pytest.mark.parametrize(
    "metadata",
    [None, {}, {f"{'🙂' * 62}{number:02d}": "é" * 512 for number in range(16)}],
    ids=["null", "empty", "full"],
)
def test_metadata_within_its_limits_is_kept(metadata: dict[str, str] | None, acme: Caller) -> None:
    batch = acme.create(rows("one"), metadata=metadata)

    assert batch["metadata"] == metadata
    assert acme.until(batch["id"], "completed")["metadata"] == metadata


@pytest.mark.parametrize(
    ("metadata", "param", "code", "message"),
    [
        (
            {str(number): "" for number in range(17)},
            "metadata",
            "object_above_max_properties",
            "Invalid 'metadata': too many properties. Expected an object with at most 16 "
            "properties, but got an object with 17 properties instead.",
        ),
        (
            {"🙂" * 65: ""},
            f"metadata.{'🙂' * 65}",
            "string_above_max_length",
            f"Invalid property name in 'metadata': '{'🙂' * 65}' is too long. Expected a string "
            "with maximum length 64, but got a string with length 65 instead.",
        ),
        (
            {"k": "🙂" * 513},
            "metadata.k",
            "string_above_max_length",
            "Invalid 'metadata.k': string too long. Expected a string with maximum length 512, "
            "but got a string with length 513 instead.",
        ),
        (
            {"tags": ["a"]},
            "metadata.tags",
            "invalid_type",
            "Invalid type for 'metadata.tags': expected a string, but got an array instead.",
        ),
    ],
    ids=["pairs", "key", "value", "type"],
)
def test_metadata_beyond_them_is_refused(
    metadata: dict[str, Any], param: str, code: str, message: str, acme: Caller
) -> None:
    answer = acme.http.post("/v1/batches", json=batch_params("file-x", metadata=metadata))

    assert answer.status_code == 400
    assert answer.json()["error"] == {
        "message": message,
        "type": "invalid_request_error",
        "param": param,
        "code": code,
    }


def test_killed_processes_lose_and_double_no_row_in_any_status(
    acme: Caller, yard: ServiceYard
) -> None:
    body = rows("one", WAIT, "three", REFUSE, "five")
    running, ending = acme.create(body)["id"], acme.create(body)["id"]
    for batch_id in (running, ending):
        _until_claimed(yard, batch_id, slices=3)
    yard.dispatcher.freeze()
    yard.engine.release(ending)
    waiting = acme.create(body)["id"]
    statuses = {waiting: "validating", running: "in_progress", ending: "finalizing"}
    for batch_id, status in statuses.items():
        acme.until(batch_id, status)

    for process in (yard.gateway, yard.dispatcher):
        process.kill()
        process.start()
    yard.gateway.wait()
    for batch_id in statuses:
        yard.engine.release(batch_id)
    yard.dispatcher.wait()

    for batch_id in statuses:
        batch = acme.until(batch_id, "completed", "failed")
        output, error = acme.lines(batch["output_file_id"]), acme.lines(batch["error_file_id"])
        assert batch["status"] == "completed"
        assert batch["request_counts"] == {"total": 5, "completed": 4, "failed": 1}
        assert [one["custom_id"] for one in output] == ["row-0", "row-1", "row-2", "row-4"]
        assert [one["custom_id"] for one in error] == ["row-3"]


def _until_done(caller: Caller, batch_id: str, count: int) -> None:
    """Return when this many rows have a result."""
    wait_until(lambda: caller.batch(batch_id)["request_counts"]["completed"] >= count)


def _until_claimed(yard: ServiceYard, batch_id: str, *, slices: int) -> None:
    """Return when the engine holds, or has run, this many of the batch's slices."""
    key = f"{{batchyard}}:epochs:{batch_id}"
    wait_until(lambda: int(yard.redis.hlen(key)) >= slices)
