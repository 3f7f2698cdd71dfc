import secrets
from collections.abc import Iterator

import httpx
import pytest
from pydantic import SecretStr

from gateway.settings import GatewaySettings
from tests.integration.gateway.conftest import Gateway, running

_TOKEN = "a token of this test"


@pytest.fixture(scope="module")
def watched(settings: GatewaySettings) -> Iterator[Gateway]:
    with running(settings.model_copy(update={"metrics_token": SecretStr(_TOKEN)})) as gateway:
        yield gateway


def test_calls_are_shown_to_the_bearer_of_the_token(watched: Gateway) -> None:
    httpx.get(f"{watched.url}/v1/batches/batch_1", headers={"authorization": "Bearer sk-none"})
    httpx.get(f"{watched.url}/{secrets.token_hex(4)}")

    text = _scraped(watched, _TOKEN).text

    called = 'method="GET",route="/v1/batches/{batch_id}",status="401"'
    assert f"batchyard_http_requests_total{{{called}}} 1.0" in text
    assert 'batchyard_http_requests_total{method="",route="",status="404"} 1.0' in text


@pytest.mark.parametrize("token", ["wrong", _TOKEN[:-1], f"{_TOKEN}x"])
def test_they_are_shown_to_nobody_else(watched: Gateway, token: str) -> None:
    answer = _scraped(watched, token)

    assert answer.status_code == 401
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_without_a_token_there_is_no_such_page(gateway: Gateway) -> None:
    assert _scraped(gateway, _TOKEN).status_code == 404


def _scraped(gateway: Gateway, token: str) -> httpx.Response:
    return httpx.get(f"{gateway.url}/metrics", headers={"authorization": f"Bearer {token}"})
