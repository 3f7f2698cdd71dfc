"""What callers see at their limits, with two gateways that share the counts."""

import itertools
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from openai import RateLimitError

from dispatcher.planning import Planner
from gateway.settings import GatewaySettings
from shared.catalog_file import load_catalog
from shared.lifecycle import Event
from shared.settings import open_storage
from shared.slicing import SliceLimits
from shared.state import Quota, State
from tests.batches import new_slice
from tests.integration.gateway.conftest import Caller, Gateway, calling, running

LINE = b'{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"model":"tiny"}}\n'
_LIMITS: dict[str, Any] = {
    "requests_per_minute": 12,
    "file_requests_per_minute": 3,
    "batches_per_hour": 2,
    "max_enqueued_requests": 50,
    "max_enqueued_tokens": 1000,
    "max_input_bytes": 1000,
    "max_metadata_pairs": 1,
    "max_metadata_key_characters": 2,
    "max_metadata_value_characters": 3,
    "missing_file": "async",
}


@pytest.fixture(scope="module")
def gateways(settings: GatewaySettings) -> Iterator[tuple[Gateway, Gateway]]:
    limited = GatewaySettings.model_validate({**settings.model_dump(), **_LIMITS})
    with running(limited) as first, running(limited) as second:
        yield first, second


@pytest.fixture
async def gateway_state(gateways: tuple[Gateway, Gateway]) -> AsyncIterator[State]:
    state = State(gateways[0].settings.redis_url.get_secret_value())
    yield state
    await state.close()


@pytest.fixture
async def acme(gateways: tuple[Gateway, Gateway], gateway_state: State) -> AsyncIterator[Caller]:
    async with calling(gateways[0], gateway_state) as caller:
        yield caller


@pytest.fixture
async def file_id(acme: Caller) -> str:
    return (await acme.openai.files.create(file=LINE, purpose="batch")).id


async def test_gateways_share_the_calls_of_a_tenant(
    acme: Caller, gateways: tuple[Gateway, Gateway], gateway_state: State
) -> None:
    async with httpx.AsyncClient(base_url=gateways[1].url, headers=acme.http.headers) as other:
        answers = []
        for client in itertools.cycle((acme.http, other)):
            answers.append(await client.get("/v1/models"))
            if answers[-1].status_code != 200:
                break
        stranger = await gateway_state.keys.create("somebody-else")
        beside = await other.get("/v1/models", headers={"authorization": f"Bearer {stranger}"})

    left = [int(answer.headers["x-ratelimit-remaining-requests"]) for answer in answers]
    refused, error = answers[-1], answers[-1].json()["error"]
    # One more for each five seconds that a busy machine needs.
    assert 12 <= len(answers) - 1 <= 14
    assert left[:2] == [11, 10]
    assert {answer.headers["x-ratelimit-limit-requests"] for answer in answers} == {"12"}
    assert refused.status_code == 429
    assert 0 < int(refused.headers["retry-after"]) <= 5
    assert 0 < int(refused.headers["retry-after-ms"]) <= 5000
    assert "x-should-retry" not in refused.headers
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    assert refused.headers["x-request-id"].startswith("req_")
    assert (error["type"], error["code"]) == ("requests", "rate_limit_exceeded")
    assert error["message"].startswith(
        f"Rate limit reached for organization {acme.tenant} on requests per min (RPM): "
        "Limit 12, Used 12. Please try again in "
    )
    assert beside.status_code == 200


async def test_files_have_a_limit_of_their_own(acme: Caller) -> None:
    answers = [await acme.http.get(path) for path in ("/v1/files", "/v1/files/x") for _ in "ab"]
    models = await acme.http.get("/v1/models")

    assert [answer.status_code for answer in answers] == [200, 200, 404, 429]
    assert answers[0].headers["x-ratelimit-limit-requests"] == "3"
    assert "files" in answers[-1].json()["error"]["message"]
    assert models.status_code == 200
    assert models.headers["x-ratelimit-remaining-requests"] in ("8", "9")


async def test_new_batches_are_limited_by_the_hour_and_repeats_are_not(
    acme: Caller, file_id: str
) -> None:
    made = [
        await acme.http.post("/v1/batches", json=_params(file_id, idempotency_key=key))
        for key in ("a", "a", "b", "a", "b")
    ]
    with pytest.raises(RateLimitError) as refused:
        await acme.openai.batches.create(
            input_file_id=file_id, endpoint="/v1/completions", completion_window="24h"
        )

    assert [answer.status_code for answer in made] == [200] * 5
    assert len({answer.json()["id"] for answer in made}) == 2
    headers = refused.value.response.headers
    assert (refused.value.code, refused.value.type) == ("rate_limit_exceeded", "requests")
    assert "batches per hour: Limit 2, Used 2." in refused.value.message
    # The wait is half an hour, so no client should retry by itself.
    assert (headers["retry-after"], headers["x-should-retry"]) == ("60", "false")
    assert headers["x-ratelimit-limit-requests"] == "2"
    assert len((await acme.openai.batches.list()).data) == 2


async def test_a_retry_counts_as_a_new_batch_once(
    acme: Caller, file_id: str, gateway_state: State
) -> None:
    made = (await acme.http.post("/v1/batches", json=_params(file_id))).json()["id"]
    await _start(gateway_state, made, acme, "tiny", (1, 1))
    await gateway_state.apply(made, Event.LANE_FAILED)

    answers = [
        await acme.http.post(f"/v1/batches/{made}/retry", json={"priority": priority})
        for priority in (1, 1, 2)
    ]

    assert [answer.status_code for answer in answers] == [200, 200, 429]


@pytest.mark.parametrize(
    ("queue", "share", "model", "limit"),
    [("request", (50, 1), "", "50"), ("token", (1, 1000), " for tiny", "1,000")],
)
async def test_nothing_is_taken_for_a_queue_that_is_full(
    queue: str,
    share: tuple[int, int],
    model: str,
    limit: str,
    acme: Caller,
    file_id: str,
    gateway_state: State,
) -> None:
    running_id = (await acme.http.post("/v1/batches", json=_params(file_id))).json()["id"]
    for name in ("tiny", "meta-llama/Llama-3.1-8B") if queue == "token" else ("tiny",):
        await _start(gateway_state, running_id if name == "tiny" else None, acme, name, share)

    refused = await acme.http.post("/v1/batches", json=_params(file_id))
    await gateway_state.apply(running_id, Event.CANCEL_REQUESTED)
    again = await acme.http.post("/v1/batches", json=_params(file_id))

    assert refused.status_code == 429
    assert refused.headers["x-should-retry"] == "false"
    assert refused.headers["retry-after"] == "60"
    assert refused.json()["error"] == {
        "message": f"Enqueued {queue} limit reached{model} in organization {acme.tenant}. "
        f"Limit: {limit} enqueued {queue}s. Used: {limit}. Please try again once some in_progress "
        "batches have been completed.",
        "type": f"{queue}s",
        "param": None,
        "code": f"{queue}_limit_exceeded",
    }
    assert again.status_code == 200


async def test_an_input_that_is_too_large_for_a_batch_is_refused_at_once(acme: Caller) -> None:
    file = await acme.openai.files.create(file=LINE * 20, purpose="batch")

    answer = await acme.http.post("/v1/batches", json=_params(file.id))

    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["param"] == "input_file_id"
    assert f"{file.id} is larger than the 1000 maximum" in error["message"]


async def test_a_batch_over_an_unknown_file_fails_where_that_is_wanted(
    acme: Caller, gateway_state: State, gateways: tuple[Gateway, Gateway]
) -> None:
    made = await acme.http.post("/v1/batches", json=_params("../file-none"))
    await _plan(made.json()["id"], gateway_state, gateways[0].settings)
    batch = (await acme.http.get(f"/v1/batches/{made.json()['id']}")).json()

    assert made.status_code == 200
    assert made.json()["status"] == "validating"
    assert batch["status"] == "failed"
    assert batch["input_file_id"] == "../file-none"
    assert batch["errors"]["data"] == [
        {
            "code": "invalid_request",
            "line": None,
            "message": f"Cannot find file ../file-none, or organization {acme.tenant} does not "
            "have access to it.",
            "param": "file_id",
        }
    ]


@pytest.mark.parametrize(
    ("metadata", "status"),
    [({"ab": "xyz"}, 200), ({"a": "", "b": ""}, 400), ({"abc": ""}, 400), ({"a": "wxyz"}, 400)],
)
async def test_metadata_has_the_limits_of_the_settings(
    metadata: dict[str, str], status: int, acme: Caller, file_id: str
) -> None:
    answer = await acme.http.post("/v1/batches", json=_params(file_id, metadata=metadata))
    batch_id = (await acme.http.post("/v1/batches", json=_params(file_id))).json()["id"]
    body = {"metadata": metadata}
    changed = await acme.http.post(f"/v1/batches/{batch_id}", json=body)
    retried = await acme.http.post(f"/v1/batches/{batch_id}/retry", json=body)

    assert (answer.status_code, changed.status_code) == (status, status)
    # What is allowed is only too early.
    assert retried.status_code == {200: 409, 400: 400}[status]


def _params(file_id: str, **changes: Any) -> dict[str, Any]:
    return {
        "input_file_id": file_id,
        "endpoint": "/v1/completions",
        "completion_window": "24h",
        **changes,
    }


async def _start(
    state: State, batch_id: str | None, caller: Caller, model: str, share: tuple[int, int]
) -> None:
    """Let a batch of the caller's run, with so many rows and prompt tokens."""
    if batch_id is None:
        batch_id = f"batch_{time.time_ns():032x}"
        fields: dict[str, str | int] = {
            "id": batch_id,
            "tenant": caller.tenant,
            "input_file_id": "file-x",
            "created_at": 1,
            "expires_at": 4_000_000_000,
        }
        await state.batches.accept(batch_id, "p", fields, input_file=None, submission=None)
    await state.slices.plan(batch_id, "p", 0, [new_slice(0)])
    rows, tokens = share
    await state.apply(
        batch_id,
        Event.INPUT_ACCEPTED,
        {"plan": "p", "total": rows, "prompt_tokens": tokens, "queued_model": model},
    )


async def _plan(batch_id: str, state: State, settings: GatewaySettings) -> None:
    storage = open_storage(settings)
    planner = Planner(
        state,
        storage,
        load_catalog(settings.catalog),
        slice_limits=SliceLimits(),
        max_rows=10,
        quota=Quota(0, 0),
    )
    await planner.plan(batch_id)
    storage.close()
