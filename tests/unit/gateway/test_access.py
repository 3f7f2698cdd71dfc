import httpx
import pytest
from fastapi import FastAPI, Response
from structlog.testing import capture_logs

from gateway import errors
from gateway.access import Access
from shared.monitoring.trail import Trail


@pytest.fixture
def app() -> FastAPI:
    app = FastAPI()
    app.add_middleware(Access, trail=Trail(None))
    errors.install(app)

    @app.get("/broken/{part}")
    async def broken(part: str) -> None:
        raise ZeroDivisionError(part)

    @app.api_route("/answers/{status}", methods=["GET", "POST"])
    async def answers(status: int) -> Response:
        return Response(status_code=status)

    return app


@pytest.mark.parametrize(("sample", "level"), [(0.0, "debug"), (1.0, "info")])
async def test_reads_are_logged_as_far_as_they_are_sampled(sample: float, level: str) -> None:
    app = FastAPI()
    app.add_middleware(Access, trail=Trail(None), sample=sample)

    with capture_logs() as lines:
        await _get(app, "/nothing")

    assert [line["log_level"] for line in lines] == [level]


async def test_a_bug_is_answered_with_the_envelope_and_all_headers(app: FastAPI) -> None:
    answer = await _get(app, "/broken/secret")

    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "server_error"
    assert "secret" not in answer.text
    assert answer.headers["x-request-id"].startswith("req_")
    assert answer.headers["openai-version"] == "2020-10-01"


async def test_a_bug_is_one_line_of_the_log(app: FastAPI) -> None:
    with capture_logs() as lines:
        await _get(app, "/broken/secret")

    assert [(line["event"], line["status"], line["route"]) for line in lines] == [
        ("http.answered", 500, "/broken/{part}")
    ]


@pytest.mark.parametrize(
    ("method", "status", "level"),
    [
        ("GET", 200, "debug"),
        ("GET", 404, "debug"),
        ("GET", 503, "debug"),
        ("POST", 200, "info"),
        ("POST", 429, "debug"),
        ("POST", 500, "warning"),
    ],
)
async def test_only_changes_and_bugs_are_logged_above_debug(
    app: FastAPI, method: str, status: int, level: str
) -> None:
    with capture_logs() as lines:
        await _call(app, method, f"/answers/{status}")

    assert [(line["event"], line["status"], line["log_level"]) for line in lines] == [
        ("http.answered", status, level)
    ]


async def _get(app: FastAPI, path: str) -> httpx.Response:
    return await _call(app, "GET", path)


async def _call(app: FastAPI, method: str, path: str) -> httpx.Response:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        return await client.request(method, path)
