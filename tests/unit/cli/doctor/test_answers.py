"""What `doctor` makes of the answers of Ray's dashboard and of a gateway."""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from cli.client.contexts import Target
from cli.doctor import gateway, ray
from cli.doctor.finding import Finding, Level

_WELL = {"status": "ok"}
_CHAT = {"id": "tiny", "state": "warm", "endpoints": ["/v1/chat/completions"]}


@pytest.mark.parametrize(
    ("version", "resources", "failed"),
    [
        ("2.60.0", {"stores": 1000}, []),
        ("2.59.0", {"stores": 1000}, ["Ray 2.59.0, not 2.60.0"]),
        (
            "2.60.0",
            {"CPU": 8},
            ["none of its 1 nodes has the resource 'stores', so lane jobs cannot start"],
        ),
    ],
)
async def test_a_ray_of_another_version_or_without_a_node_for_lane_jobs_is_named(
    version: str, resources: Mapping[str, float], failed: list[str]
) -> None:
    nodes = [
        {"state": "ALIVE", "resources_total": resources},
        {"state": "DEAD", "resources_total": {"stores": 1}},
    ]
    answers = {
        "/api/version": {"ray_version": version},
        "/api/v0/nodes?detail=true": {"data": {"result": {"result": nodes}}},
    }
    with _answering(answers) as url:
        found = [one async for one in ray.look(url, "token")]

    assert len(found) == 2
    assert [one.says for one in found if one.level is Level.FAILED] == failed
    assert all(one.do for one in found if one.level is Level.FAILED)


def test_a_gateway_that_is_not_ready_names_what_is_away() -> None:
    [ready, _] = _look({"/readyz": {"status": "unready", "redis": "gone", "s3": "ok"}})

    assert (ready.level, ready.says) == (
        Level.FAILED,
        "it is not ready: redis gone",
    )


def test_a_model_whose_engine_sleeps_or_takes_no_known_row_gets_none() -> None:
    models = [{**_CHAT, "state": "cold"}, {**_CHAT, "endpoints": ["/v1/rerank"]}]
    answers = {"/readyz": _WELL, "/v1/models": {"data": models}}

    [_, cold, other] = _look(answers)

    assert [cold.level, other.level] == [Level.SKIPPED] * 2
    assert cold.says == "tiny has no engine that runs (cold)"
    assert other.says == "tiny serves only /v1/rerank"


def test_a_row_without_an_answer_is_named_with_its_batch() -> None:
    batch = {"id": "batch_1", "status": "failed", "request_counts": {"completed": 0}}
    answers = {
        "/readyz": _WELL,
        "/v1/models": {"data": [_CHAT]},
        "/v1/files": {"id": "file-1"},
        "/v1/batches": batch,
        "/v1/batches/batch_1": batch,
    }

    [_, row] = _look(answers)

    assert (row.level, row.says) == (
        Level.FAILED,
        "tiny: the batch batch_1 ended as failed, without an answer",
    )
    assert "batchyard fetch batch_1 --failed" in row.do


def test_a_gateway_that_is_away_is_named_with_its_address() -> None:
    [found] = gateway.look(Target("doctor", "http://127.0.0.1:9/v1", "key"), row_seconds=1)

    assert (found.level, found.says) == (
        Level.FAILED,
        "it does not answer at http://127.0.0.1:9 (ConnectError)",
    )


def _look(answers: Mapping[str, Any]) -> list[Finding]:
    with _answering(answers) as url:
        return list(gateway.look(Target("doctor", f"{url}/v1", "key"), row_seconds=10))


@contextmanager
def _answering(answers: Mapping[str, Any]) -> Iterator[str]:
    """A server that answers these paths, and refuses all others."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers["content-length"] or 0))
            known = self.path in answers
            refusal = {"error": {"message": "No.", "type": "invalid_request_error"}}
            body = json.dumps(answers[self.path] if known else refusal).encode()
            self.send_response(200 if known else 401)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815  # a name that the base class looks for

        def log_message(self, *_: object) -> None:
            """Not among the tests' output."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
