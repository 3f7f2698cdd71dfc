"""Files whose lines name several models and endpoints, where the operator allows them."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from shared.state import State
from tests.contract.conftest import (
    BROKEN_MODEL,
    CHAT,
    EMBEDDER,
    FINAL,
    MODEL,
    OTHER_MODEL,
    Caller,
    ServiceYard,
    row,
)
from tests.contract.engine import REFUSE, WAIT
from tests.eventually import wait_until

EMBEDDINGS = "/v1/embeddings"
LANE, OTHER_LANE, BROKEN_LANE = "tiny@cpu", "org--other-1.5@cpu", "broken@cpu"


@pytest.fixture(autouse=True, scope="module")
def _switch(yard: ServiceYard) -> Iterator[None]:
    """Only the dispatcher needs it for batches that run."""
    yard.dispatcher.restart(BATCHYARD_MIXED_BATCHES="true")
    yard.dispatcher.wait()
    yield
    yard.dispatcher.restart(BATCHYARD_MIXED_BATCHES="false")
    yard.dispatcher.wait()


@pytest.fixture
def mortal(yard: ServiceYard) -> Iterator[ServiceYard]:
    """A yard whose lanes get their workers back."""
    yield yard
    for lane in (LANE, OTHER_LANE, BROKEN_LANE):
        yard.engine.revive(lane)


def test_models_and_endpoints_interleaved_give_one_output_in_input_order(acme: Caller) -> None:
    requests = [
        row("chat-0", "one"),
        embedding("vector-0"),
        row("other-0", "two", model=OTHER_MODEL),
        row("chat-1", "three"),
        row("refused-0", REFUSE, model=OTHER_MODEL),
        embedding("vector-1"),
        row("refused-1", REFUSE),
        embedding("vector-2"),
        row("other-1", "four", model=OTHER_MODEL),
        row("chat-2", "five"),
        row("chat-3", "six"),
    ]

    batch = acme.run(b"".join(requests))

    assert batch["status"] == "completed"
    assert (batch["endpoint"], batch["model"]) == (CHAT, None)
    assert batch["request_counts"] == {"total": 11, "completed": 9, "failed": 2}
    asked = [json.loads(request) for request in requests]
    output, errors = acme.lines(batch["output_file_id"]), acme.lines(batch["error_file_id"])
    assert [(line["custom_id"], line["response"]["body"]["model"]) for line in output] == [
        (one["custom_id"], one["body"]["model"])
        for one in asked
        if not one["custom_id"].startswith("refused")
    ]
    assert [line["custom_id"] for line in errors] == ["refused-0", "refused-1"]
    for line in output:
        is_vector = line["custom_id"].startswith("vector")
        assert ("choices" in line["response"]["body"]) != is_vector
    # The same in the results as they came, read after the end.
    whole = results(acme, batch["id"], "input")
    assert [line["custom_id"] for line in whole] == [one["custom_id"] for one in asked]
    completed = results(acme, batch["id"], "completion")
    assert sorted(map(json.dumps, completed)) == sorted(map(json.dumps, whole))


def test_the_rows_of_a_lane_that_fails_get_its_reason_and_the_others_their_results(
    acme: Caller, mortal: ServiceYard
) -> None:
    mortal.engine.kill(BROKEN_LANE)
    # As a lane job says it.
    mortal.on_state(lambda state: state.lanes.fail(BROKEN_LANE, "no such model weights"))
    requests = [row(f"good-{n}") + row(f"bad-{n}", model=BROKEN_MODEL) for n in range(4)]

    batch = acme.run(b"".join(requests))

    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": 8, "completed": 4, "failed": 4}
    output, errors = acme.lines(batch["output_file_id"]), acme.lines(batch["error_file_id"])
    assert [line["custom_id"] for line in output] == [f"good-{n}" for n in range(4)]
    assert [(line["custom_id"], line["response"], line["error"]) for line in errors] == [
        (f"bad-{n}", None, {"code": "engine_failed", "message": "no such model weights"})
        for n in range(4)
    ]
    explained = acme.http.get(f"/v1/batches/{batch['id']}/explain").json()
    assert [lane["failed"] for lane in explained["lanes"]] == [None, "no such model weights"]

    mortal.engine.revive(BROKEN_LANE)
    retried = acme.http.post(f"/v1/batches/{batch['id']}/retry", json={"rows": "not_run"}).json()
    again = acme.until(retried["id"], *FINAL)
    assert [line["custom_id"] for line in acme.lines(again["output_file_id"])] == [
        f"bad-{n}" for n in range(4)
    ]


def test_where_every_lane_fails_each_row_has_its_own_lanes_reason(
    acme: Caller, mortal: ServiceYard
) -> None:
    lanes = (LANE, OTHER_LANE)
    for lane in lanes:
        mortal.engine.kill(lane)
    batch_id = acme.create(row("a") + row("b", model=OTHER_MODEL))["id"]
    acme.until(batch_id, "in_progress")

    async def fail(state: State) -> None:
        for lane in lanes:
            await state.fail_lane(lane, batch_id, f"{lane} is out of order", {})

    # The dispatcher, whose part this is, waits with these lanes for a Ray that is not there.
    mortal.on_state(fail)

    ended = acme.until(batch_id, *FINAL)
    assert (ended["status"], ended["output_file_id"]) == ("completed", None)
    assert [line["error"]["message"] for line in acme.lines(ended["error_file_id"])] == [
        f"{lane} is out of order" for lane in lanes
    ]


def test_one_lanes_worker_dies_in_the_middle_and_nothing_is_lost_or_doubled(
    acme: Caller, mortal: ServiceYard
) -> None:
    requests = [row(f"here-{n}") + row(f"there-{n}", WAIT, model=OTHER_MODEL) for n in range(5)]
    batch = acme.create(b"".join(requests))
    # One lane is done; the other holds its rows.
    wait_until(lambda: acme.batch(batch["id"])["request_counts"]["completed"] == 5)
    claims = f"{{batchyard}}:lane:{OTHER_LANE}:claims"
    wait_until(lambda: held(mortal, claims, batch["id"]) == 3)

    mortal.engine.kill(OTHER_LANE)
    for member in mortal.redis.zrange(claims, 0, -1):
        mortal.redis.zadd(claims, {member: 1})
    wait_until(lambda: held(mortal, claims, batch["id"]) == 0)
    mortal.engine.revive(OTHER_LANE)
    mortal.engine.release(batch["id"])

    ended = acme.until(batch["id"], *FINAL)
    assert ended["status"] == "completed"
    assert [line["custom_id"] for line in acme.lines(ended["output_file_id"])] == [
        f"{place}-{n}" for n in range(5) for place in ("here", "there")
    ]
    assert ended["error_file_id"] is None
    assert ended["request_counts"] == {"total": 10, "completed": 10, "failed": 0}


def test_a_cancelled_batch_keeps_what_its_quick_lane_has_done(acme: Caller) -> None:
    slow = [row(f"slow-{n}", WAIT, model=OTHER_MODEL) for n in range(3)]
    quick = [row(f"quick-{n}") for n in range(3)]
    requests = [quick[0], quick[1], slow[0], quick[2], slow[1], slow[2]]
    batch = acme.create(b"".join(requests))
    wait_until(lambda: acme.batch(batch["id"])["request_counts"]["completed"] == 3)

    # As they came: all that there are; in input order: up to the first that is missing.
    assert {line["custom_id"] for line in results(acme, batch["id"], "completion")} == {
        f"quick-{n}" for n in range(3)
    }
    assert [line["custom_id"] for line in results(acme, batch["id"], "input")] == [
        "quick-0",
        "quick-1",
    ]
    acme.http.post(f"/v1/batches/{batch['id']}/cancel")

    ended = acme.until(batch["id"], "cancelled")
    assert [line["custom_id"] for line in acme.lines(ended["output_file_id"])] == [
        f"quick-{n}" for n in range(3)
    ]
    assert [
        (line["custom_id"], line["error"]["code"]) for line in acme.lines(ended["error_file_id"])
    ] == [(f"slow-{n}", "batch_cancelled") for n in range(3)]
    assert [line["custom_id"] for line in results(acme, batch["id"], "input")] == [
        json.loads(request)["custom_id"] for request in requests
    ]


def test_a_line_may_only_name_what_there_is(acme: Caller) -> None:
    requests = [
        row("a"),
        row("b", url="/v1/images/generations"),
        row("c", model="nobody"),
        row("d", model=EMBEDDER),
        embedding("e", model=MODEL),
        row("a", model=OTHER_MODEL),
    ]

    batch = acme.run(b"".join(requests))

    assert batch["status"] == "failed"
    assert [(one["line"], one["code"], one["param"]) for one in batch["errors"]["data"]] == [
        (2, "invalid_url", "url"),
        (3, "model_not_found", "body.model"),
        (4, "model_not_found", "body.model"),
        (5, "model_not_found", "body.model"),
        (6, "duplicate_custom_id", "custom_id"),
    ]
    assert "/v1/images/generations" in batch["errors"]["data"][0]["message"]


def embedding(custom_id: str, *, model: str = EMBEDDER) -> bytes:
    body = {"model": model, "input": "some words"}
    return row(custom_id, url=EMBEDDINGS, body=body)


def results(caller: Caller, batch_id: str, order: str) -> list[dict[str, Any]]:
    """The batch's results so far."""
    answer = caller.http.get(f"/v1/batches/{batch_id}/results", params={"order": order})
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.split("\n") if line]


def held(yard: ServiceYard, claims: str, batch_id: str) -> int:
    """The batch's slices among these claims."""
    return sum(member.startswith(batch_id) for member in yard.redis.zrange(claims, 0, -1))
