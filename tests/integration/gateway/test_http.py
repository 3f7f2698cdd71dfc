"""What holds for every call: headers, envelopes, keys."""

import httpx
import pytest
from openai import AsyncOpenAI, AuthenticationError

from shared.state import State
from tests.integration.gateway.conftest import Caller, Gateway

CALLS = [
    ("GET", "/v1/files"),
    ("POST", "/v1/files"),
    ("GET", "/v1/files/file-x"),
    ("DELETE", "/v1/files/file-x"),
    ("GET", "/v1/files/file-x/content"),
    ("GET", "/v1/batches"),
    ("POST", "/v1/batches"),
    ("GET", "/v1/batches/batch_x"),
    ("POST", "/v1/batches/batch_x/cancel"),
    ("POST", "/v1/batches/batch_x"),
    ("POST", "/v1/batches/batch_x/pause"),
    ("POST", "/v1/batches/batch_x/resume"),
    ("POST", "/v1/batches/batch_x/retry"),
    ("GET", "/v1/batches/batch_x/events"),
    ("GET", "/v1/batches/batch_x/explain"),
    ("GET", "/v1/batches/batch_x/results"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/tiny"),
    ("GET", "/openapi.json"),
]


@pytest.mark.parametrize(("method", "path"), CALLS)
async def test_without_a_key_nothing_is_served(method: str, path: str, gateway: Gateway) -> None:
    async with httpx.AsyncClient(base_url=gateway.url) as stranger:
        answer = await stranger.request(method, path, content=b"{")

    assert answer.status_code == 401
    error = answer.json()["error"]
    assert error["message"].startswith("You didn't provide an API key.")
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, None)


async def test_a_wrong_key_is_not_shown_back(gateway: Gateway) -> None:
    async with AsyncOpenAI(
        api_key="sk-wrong-0123456789abcdef", base_url=f"{gateway.url}/v1"
    ) as stranger:
        with pytest.raises(AuthenticationError, match="Incorrect API key provided: sk-") as refused:
            await stranger.models.list()

    assert refused.value.code == "invalid_api_key"
    assert "0123456789" not in str(refused.value)


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ("", None),
        ("Bearer", None),
        ("Basic eDp5", None),
        ("bearer\xe9", None),
        ("Bearer \xff\xfe\xe9", "invalid_api_key"),
        ("Bearer a b", "invalid_api_key"),
        ("bearer " + "x" * 20_000, "invalid_api_key"),
    ],
)
async def test_what_is_no_bearer_key_is_none(
    header: str, code: str | None, gateway: Gateway
) -> None:
    async with httpx.AsyncClient(base_url=gateway.url) as stranger:
        answer = await stranger.get(
            "/v1/models", headers=[(b"authorization", header.encode("latin-1"))]
        )

    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == code
    assert answer.headers["x-request-id"].startswith("req_")
    assert not [name for name in answer.headers if name.startswith("x-ratelimit")]


async def test_a_revoked_key_is_refused_at_once(acme: Caller, gateway_state: State) -> None:
    assert (await acme.http.get("/v1/models")).status_code == 200

    await gateway_state.keys.revoke((await gateway_state.keys.get(acme.key)).id)
    answer = await acme.http.get("/v1/models")

    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize(
    ("method", "path", "status", "message", "code"),
    [
        ("POST", "/v1/foo", 404, "Invalid URL (POST /v1/foo)", None),
        ("GET", "/v1/files/", 404, "Invalid URL (GET /v1/files/)", None),
        ("GET", "/elsewhere", 404, "Invalid URL (GET /elsewhere)", None),
        ("PUT", "/v1/files", 405, "Only GET and POST requests are accepted.", None),
        ("GET", "/v1/batches/b/cancel", 405, "Only POST requests are accepted.", None),
    ],
)
async def test_wrong_paths_and_verbs_get_the_envelope(
    method: str, path: str, status: int, message: str, code: str | None, acme: Caller
) -> None:
    answer = await acme.http.request(method, path)

    assert answer.status_code == status
    assert answer.json() == {
        "error": {
            "message": message,
            "type": "invalid_request_error",
            "param": None,
            "code": "method_not_supported" if status == 405 else code,
        }
    }


@pytest.mark.parametrize(("method", "path"), [*CALLS, ("GET", "/nowhere"), ("PUT", "/v1/files")])
async def test_every_answer_carries_openais_headers(method: str, path: str, acme: Caller) -> None:
    answer = await acme.http.request(method, path)

    assert answer.headers["x-request-id"].startswith("req_")
    assert len(answer.headers["x-request-id"]) == len("req_") + 32
    assert int(answer.headers["openai-processing-ms"]) >= 0
    assert answer.headers["openai-version"] == "2020-10-01"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-type"] == "application/json"
    if path.startswith("/v1/") and method != "PUT":
        assert int(answer.headers["x-ratelimit-limit-requests"]) >= 1000
        assert int(answer.headers["x-ratelimit-remaining-requests"]) > 900
        assert answer.headers["x-ratelimit-reset-requests"].endswith("s")


async def test_two_calls_have_two_ids(acme: Caller) -> None:
    first, second = [(await acme.http.get("/v1/models")).headers["x-request-id"] for _ in range(2)]

    assert first != second


async def test_a_body_where_none_belongs_is_ignored(acme: Caller) -> None:
    answer = await acme.http.request(
        "DELETE", "/v1/files/file-x", headers={"content-type": "application/json"}
    )

    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == "No such File object: file-x"


async def test_the_schema_names_every_call(acme: Caller) -> None:
    schema = (await acme.http.get("/openapi.json")).json()

    served = {
        (method.upper(), path) for path, methods in schema["paths"].items() for method in methods
    }
    assert ("POST", "/v1/files") in served
    assert ("POST", "/v1/batches/{batch_id}/cancel") in served
    for path, methods in schema["paths"].items():
        if path.startswith("/v1/"):
            for call in methods.values():
                assert "422" not in call["responses"]
