"""Open batches over HTTP: created, given requests, closed; with the official SDK where it can."""

import asyncio
import json
import time
from typing import Any

import pytest
from openai import BadRequestError, omit
from openai.types import Batch

from dispatcher.windows import Windows
from shared.lifecycle import Event, Status
from shared.state import State
from shared.storage import Storage
from shared.tenants import TenantSettings
from tests.eventually import eventually
from tests.integration.dispatcher.conftest import BatchYard, good, line, lines
from tests.integration.gateway.conftest import Caller

CHAT = "/v1/chat/completions"


async def opened(acme: Caller, **changes: Any) -> str:
    """A new open batch."""
    body = {
        "open": True,
        "model": "tiny",
        "endpoint": CHAT,
        "completion_window": "24h",
        **changes,
    }
    answer = await acme.http.post("/v1/batches", json=body)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def rows(*names: str, **body: Any) -> bytes:
    """A line for each of these names."""
    return b"".join(line(name, **{"model": "tiny", **body}) + b"\n" for name in names)


async def added(acme: Caller, batch_id: str, content: bytes) -> tuple[int, int, int]:
    """What a call says: new requests, repeated ones, all."""
    answer = await acme.http.post(f"/v1/batches/{batch_id}/requests", content=content)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    return found["added"], found["repeated"], found["total"]


async def closed(acme: Caller, batch_id: str) -> dict[str, Any]:
    answer = await acme.http.post(f"/v1/batches/{batch_id}/close")
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def output(acme: Caller, yard: BatchYard, batch_id: str) -> list[str]:
    """The names in the output file of a batch that has nothing left to run, in order."""
    await yard.finaliser.finish(batch_id)
    batch = await acme.openai.batches.retrieve(batch_id)
    assert batch.status == "completed"
    content = await acme.openai.files.content(batch.output_file_id or "")
    return [json.loads(one)["custom_id"] for one in content.text.splitlines()]


async def test_requests_run_as_they_come_and_end_as_one_output(
    acme: Caller, yard: BatchYard
) -> None:
    batch = await acme.openai.batches.create(
        input_file_id=omit,  # type: ignore[arg-type]  # the SDK leaves it out
        endpoint="/v1/chat/completions",
        completion_window="24h",
        extra_body={"open": True, "model": "tiny"},
    )
    batch_id = batch.id

    assert (batch.status, batch.model_extra, batch.model) == ("in_progress", {"open": True}, "tiny")
    assert await added(acme, batch_id, rows("a", "b", "c", "d")) == (4, 0, 4)
    await yard.run(batch_id, lambda _: good())
    between = await acme.openai.batches.retrieve(batch_id)
    results = await acme.http.get(f"/v1/batches/{batch_id}/results")
    assert await added(acme, batch_id, rows("e")) == (1, 0, 5)
    await yard.run(batch_id, lambda _: good())
    ending = await closed(acme, batch_id)

    assert between.status == "in_progress"
    assert between.request_counts is not None
    assert between.request_counts.model_dump() == {"total": 4, "completed": 4, "failed": 0}
    assert len(results.text.splitlines()) == 4
    assert (ending["status"], "open" in ending) == ("finalizing", False)
    assert await output(acme, yard, batch_id) == ["a", "b", "c", "d", "e"]


async def test_its_input_is_a_file_once_it_has_ended(
    acme: Caller, yard: BatchYard, gateway_state: State
) -> None:
    batch_id = await opened(acme)
    await added(acme, batch_id, rows("a"))
    await added(acme, batch_id, rows("b", "c"))
    await closed(acme, batch_id)
    await yard.run(batch_id, lambda row: good() if row else (400, b'{"error":{"message":"no"}}'))
    await output(acme, yard, batch_id)

    batch = await acme.openai.batches.retrieve(batch_id)
    content = await acme.openai.files.content(batch.input_file_id)
    again = await acme.http.post(f"/v1/batches/{batch_id}/retry")
    retried = await acme.openai.files.content(again.json()["input_file_id"])
    record = await gateway_state.batches.get(batch_id)

    assert content.content == rows("a", "b", "c")
    assert retried.content == rows("a")
    assert record.number("size") == len(content.content)


async def test_the_same_requests_again_add_nothing(acme: Caller, yard: BatchYard) -> None:
    batch_id = await opened(acme)

    first = await added(acme, batch_id, rows("a", "b"))
    again = await added(acme, batch_id, rows("a", "b"))
    more = await added(acme, batch_id, rows("b", "c"))
    await closed(acme, batch_id)
    await yard.run(batch_id, lambda _: good())

    assert (first, again, more) == ((2, 0, 2), (0, 2, 2), (1, 1, 3))
    assert await output(acme, yard, batch_id) == ["a", "b", "c"]


async def test_another_request_of_a_known_name_is_a_conflict_that_names_its_line(
    acme: Caller,
) -> None:
    batch_id = await opened(acme)
    await added(acme, batch_id, rows("a", "b"))

    refused = await acme.http.post(
        f"/v1/batches/{batch_id}/requests", content=rows("c") + rows("b", temperature=1)
    )

    assert refused.status_code == 409
    assert "line 2" in refused.json()["error"]["message"]
    assert refused.headers["x-should-retry"] == "false"
    # All of them or none.
    assert await added(acme, batch_id, rows("c")) == (1, 0, 3)


async def test_an_array_has_the_same_requests_as_lines(acme: Caller, yard: BatchYard) -> None:
    batch_id = await opened(acme)
    requests = [json.loads(line(name, model="tiny")) for name in ("a", "b")]

    await acme.openai.post(f"/batches/{batch_id}/requests", cast_to=object, body=requests)
    pretty = json.dumps([json.loads(line("c", model="tiny"))], indent=2)
    assert await added(acme, batch_id, pretty.encode()) == (1, 0, 3)
    await closed(acme, batch_id)
    await yard.run(batch_id, lambda _: good())

    assert await output(acme, yard, batch_id) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("content", "code", "says"),
    [
        (b"", "empty_file", "empty"),
        (b"[]", "empty_file", "empty"),
        (b"[{]", "invalid_json", "array"),
        (rows("a") + b"{oops\n", "invalid_json_line", "line 2"),
        (rows("a", "a"), "duplicate_custom_id", "line 2"),
        (rows("a", model="other"), "model_not_found", "line 1"),
    ],
)
async def test_what_is_no_request_is_refused_with_its_line(
    content: bytes, code: str, says: str, acme: Caller
) -> None:
    batch_id = await opened(acme)

    refused = await acme.http.post(f"/v1/batches/{batch_id}/requests", content=content)

    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == code
    assert says in refused.json()["error"]["message"]
    assert (await acme.openai.batches.retrieve(batch_id)).request_counts.total == 0  # type: ignore[union-attr]  # every batch has counts


async def test_a_dry_run_adds_nothing(acme: Caller) -> None:
    batch_id = await opened(acme)
    path = f"/v1/batches/{batch_id}/requests"

    tried = await acme.http.post(path, content=rows("a"), params={"dry_run": "true"})
    refused = await acme.http.post(path, content=b"no", params={"dry_run": "true"})

    assert (tried.json()["added"], tried.json()["total"]) == (1, 0)
    assert refused.status_code == 400
    assert await added(acme, batch_id, rows("a")) == (1, 0, 1)


async def test_a_closed_batch_takes_nothing_and_can_be_closed_again(acme: Caller) -> None:
    batch_id = await opened(acme)
    await added(acme, batch_id, rows("a"))
    first = await closed(acme, batch_id)
    second = await closed(acme, batch_id)

    refused = await acme.http.post(f"/v1/batches/{batch_id}/requests", content=rows("b"))

    assert first == second
    assert first["status"] == "in_progress"
    assert refused.status_code == 409
    assert "closed" in refused.json()["error"]["message"]


async def test_one_that_was_given_nothing_completes_without_files(
    acme: Caller, yard: BatchYard
) -> None:
    batch_id = await opened(acme)
    await closed(acme, batch_id)
    await yard.finaliser.finish(batch_id)

    batch = await acme.openai.batches.retrieve(batch_id)

    assert (batch.status, batch.output_file_id, batch.error_file_id) == ("completed", None, None)


async def test_a_batch_that_was_not_created_open_takes_no_requests(
    acme: Caller, globex: Caller
) -> None:
    file = await acme.openai.files.create(file=lines(1, model="tiny"), purpose="batch")
    batch = await acme.openai.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )

    add = await acme.http.post(f"/v1/batches/{batch.id}/requests", content=rows("a"))
    close = await acme.http.post(f"/v1/batches/{batch.id}/close")
    strange = await globex.http.post(f"/v1/batches/{batch.id}/requests", content=rows("a"))

    assert (add.status_code, close.status_code, strange.status_code) == (409, 409, 404)
    assert "not created open" in add.json()["error"]["message"]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"model": None}, "model"),
        ({"model": "unheard-of"}, "model"),
        ({"input_file_id": "file-1"}, "input_file_id"),
        ({"dry_run": True}, "dry_run"),
        ({"open": False, "input_file_id": "file-1"}, "model"),
    ],
)
async def test_an_open_batch_is_created_with_its_model_and_no_input(
    changes: dict[str, Any], param: str, acme: Caller
) -> None:
    body = {"open": True, "model": "tiny", "endpoint": CHAT, "completion_window": "24h", **changes}

    with pytest.raises(BadRequestError) as refused:
        await acme.openai.post("/batches", cast_to=Batch, body=body)

    assert refused.value.param == param


async def test_its_idempotency_key_finds_it_again(acme: Caller) -> None:
    first = await opened(acme, idempotency_key="k")
    await added(acme, first, rows("a"))

    assert await opened(acme, idempotency_key="k") == first


async def test_cancelled_it_keeps_its_results_and_takes_no_more(
    acme: Caller, yard: BatchYard
) -> None:
    batch_id = await opened(acme)
    await added(acme, batch_id, rows("a", "b"))
    await yard.run(batch_id, lambda _: good())
    await added(acme, batch_id, rows("c"))
    await acme.openai.batches.cancel(batch_id)
    refused = await acme.http.post(f"/v1/batches/{batch_id}/requests", content=rows("d"))
    await yard.finaliser.finish(batch_id)

    batch = await acme.openai.batches.retrieve(batch_id)
    errors = await acme.openai.files.content(batch.error_file_id or "")

    assert refused.status_code == 409
    assert batch.status == "cancelled"
    assert json.loads(errors.text)["custom_id"] == "c"
    assert batch.request_counts is not None
    assert batch.request_counts.model_dump() == {"total": 3, "completed": 2, "failed": 1}


async def test_paused_it_takes_requests_which_run_once_it_is_resumed(
    acme: Caller, yard: BatchYard, gateway_state: State
) -> None:
    batch_id = await opened(acme)
    await acme.http.post(f"/v1/batches/{batch_id}/pause")
    await added(acme, batch_id, rows("a"))
    [lane] = (await gateway_state.batches.get(batch_id)).lanes
    assert await yard.claim(batch_id) == []

    await acme.http.post(f"/v1/batches/{batch_id}/resume")
    await yard.run(batch_id, lambda _: good())
    await closed(acme, batch_id)

    assert lane == "tiny@cpu"
    assert await output(acme, yard, batch_id) == ["a"]


async def test_idle_it_keeps_no_lane_job(
    acme: Caller, yard: BatchYard, gateway_state: State
) -> None:
    before = await gateway_state.lanes.active_count("tiny@cpu")

    async def is_active() -> bool:
        return await gateway_state.lanes.active_count("tiny@cpu") > before

    batch_id = await opened(acme)
    at_first = await is_active()
    await added(acme, batch_id, rows("a"))
    with_rows = await is_active()
    await yard.run(batch_id, lambda _: good())
    done = await is_active()
    await acme.http.post(f"/v1/batches/{batch_id}/pause")
    await acme.http.post(f"/v1/batches/{batch_id}/resume")
    resumed = await is_active()
    await added(acme, batch_id, rows("b"))

    assert (at_first, with_rows, done, resumed) == (False, True, False, False)
    assert await is_active()
    await acme.openai.batches.cancel(batch_id)


@pytest.mark.parametrize("has_run", [True, False])
async def test_at_the_end_of_its_window_it_is_closed(
    has_run: bool, acme: Caller, yard: BatchYard, gateway_state: State, bucket: Storage
) -> None:
    batch_id = await opened(acme)
    await added(acme, batch_id, rows("a"))
    if has_run:
        await yard.run(batch_id, lambda _: good())
    # Not by State: nobody shortens a window.
    await gateway_state._redis.zadd("{batchyard}:deadlines", {batch_id: time.time() - 1})  # noqa: SLF001  # see above

    await Windows(gateway_state, bucket).close()

    async def is_closed() -> bool:
        return (await gateway_state.batches.get(batch_id)).status is Status.FINALIZING

    await eventually(is_closed)
    await yard.finaliser.finish(batch_id)

    batch = await acme.openai.batches.retrieve(batch_id)
    assert batch.status == ("completed" if has_run else "expired")


async def test_the_tenants_queue_holds_its_requests_until_it_ends(
    acme: Caller, yard: BatchYard, gateway_state: State
) -> None:
    await gateway_state.tenants.put(acme.tenant, TenantSettings(enqueued_requests=3))
    await asyncio.sleep(1.1)
    batch_id = await opened(acme)
    await added(acme, batch_id, rows("a", "b"))

    refused = await acme.http.post(f"/v1/batches/{batch_id}/requests", content=rows("c", "d"))
    held = (await gateway_state.tenants.held([acme.tenant]))[acme.tenant]
    assert await added(acme, batch_id, rows("c")) == (1, 0, 3)
    await closed(acme, batch_id)
    await yard.run(batch_id, lambda _: good())
    after = (await gateway_state.tenants.held([acme.tenant]))[acme.tenant]

    assert refused.status_code == 429
    assert refused.json()["error"]["type"] == "requests"
    assert held.requests == 2
    assert held.tokens["tiny"] > 0
    assert (after.requests, after.tokens) == (0, {})


async def test_requests_that_come_at_once_are_added_once_each(
    acme: Caller, yard: BatchYard
) -> None:
    batch_id = await opened(acme)
    calls = [rows(f"own-{number}", "common") for number in range(8)]

    answers = await asyncio.gather(*(added(acme, batch_id, call) for call in calls))
    await closed(acme, batch_id)
    await yard.run(batch_id, lambda _: good())

    assert sum(new for new, _, _ in answers) == 9
    names = await output(acme, yard, batch_id)
    assert sorted(names) == ["common", *(f"own-{number}" for number in range(8))]


async def test_its_changes_are_announced(acme: Caller, yard: BatchYard) -> None:
    batch_id = await opened(acme)
    await added(acme, batch_id, rows("a"))
    await closed(acme, batch_id)
    await yard.run(batch_id, lambda _: good())

    kinds = [one for one in await yard.events(batch_id) if one != "batch.progress"]

    assert kinds == ["batch.accepted", "batch.in_progress", "batch.updated", "batch.finalizing"]


async def test_explain_says_that_it_waits_for_requests(acme: Caller, yard: BatchYard) -> None:
    batch_id = await opened(acme)
    empty = (await acme.http.get(f"/v1/batches/{batch_id}/explain")).json()
    await added(acme, batch_id, rows("a"))
    await yard.run(batch_id, lambda _: good())
    done = (await acme.http.get(f"/v1/batches/{batch_id}/explain")).json()

    assert empty["waits_for"]["code"] == done["waits_for"]["code"] == "requests"
    assert "close" in empty["summary"]


async def test_a_failed_one_says_so(acme: Caller, gateway_state: State) -> None:
    batch_id = await opened(acme)
    await added(acme, batch_id, rows("a"))
    await gateway_state.apply(batch_id, Event.INPUT_LOST)

    refused = await acme.http.post(f"/v1/batches/{batch_id}/requests", content=rows("b"))

    assert refused.status_code == 409
    assert "failed" in refused.json()["error"]["message"]
