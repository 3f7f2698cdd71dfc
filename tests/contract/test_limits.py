"""OpenAI's contract for limits: headers, and answers to callers above them."""

import re
from collections.abc import Iterator

import httpx
import pytest
from openai import OpenAI, RateLimitError

from cli.servers import free_port
from tests.contract.conftest import Caller, ServiceYard, batch_params, rows
from tests.contract.processes import Process

LIMIT_HEADERS = {
    "x-ratelimit-limit-requests": r"\d+",
    "x-ratelimit-remaining-requests": r"\d+",
    "x-ratelimit-reset-requests": r"\d+ms|(\d+h)?(\d+m)?\d+(\.\d+)?s",
}


@pytest.fixture(scope="module")
def narrow(yard: ServiceYard, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a gateway over the same servers that allows five calls a minute, and one batch."""
    environment = {
        **yard.environment,
        "BATCHYARD_PORT": str(free_port()),
        "BATCHYARD_REQUESTS_PER_MINUTE": "5",
        "BATCHYARD_BATCHES_PER_HOUR": "1",
    }
    process = Process("gateway", environment, tmp_path_factory.mktemp("narrow"))
    try:
        process.start()
        process.wait()
        yield f"http://127.0.0.1:{environment['BATCHYARD_PORT']}"
    finally:
        process.stop()


def test_every_answer_says_how_many_calls_are_left(acme: Caller) -> None:
    for path in ("/v1/models", "/v1/files", "/v1/batches/none"):
        answer = acme.http.get(path)

        assert [name for name in LIMIT_HEADERS if not _is_named(answer, name)] == []


def test_too_many_calls_are_told_when_to_come_back(acme: Caller, narrow: str) -> None:
    with httpx.Client(base_url=narrow, headers=acme.http.headers) as client:
        answers = [client.get("/v1/models") for _ in range(6)]

    assert [answer.status_code for answer in answers] == [200] * 5 + [429]
    refused = answers[-1]
    assert 0 < int(refused.headers["retry-after"]) <= 60
    assert refused.headers.get("x-should-retry") != "false"
    assert [name for name in LIMIT_HEADERS if not _is_named(refused, name)] == []
    error = refused.json()["error"]
    assert (error["type"], error["code"]) == ("requests", "rate_limit_exceeded")
    assert "Limit 5" in error["message"]


def test_a_limit_that_waiting_does_not_help_is_not_tried_again(acme: Caller, narrow: str) -> None:
    file_id = acme.upload(rows("one"))
    with OpenAI(api_key=acme.key, base_url=f"{narrow}/v1", max_retries=2) as client:
        client.batches.create(**batch_params(file_id))
        with pytest.raises(RateLimitError) as refused:
            client.batches.create(**batch_params(file_id))

    response = refused.value.response
    assert response.headers["x-should-retry"] == "false"
    assert int(response.headers["retry-after"]) <= 60
    assert response.request.headers["x-stainless-retry-count"] == "0"


def _is_named(answer: httpx.Response, name: str) -> bool:
    return re.fullmatch(LIMIT_HEADERS[name], answer.headers.get(name, "")) is not None
