import json
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from cli.client.contexts import Target
from cli.client.gateway import Gateway
from cli.client.pipeline_progress import PipelineProgress, pipeline_text, waiting_stage


def _pipeline(*stages: dict[str, Any], **changes: Any) -> dict[str, Any]:
    counts = {"total": 7, "completed": 4, "failed": 1}
    whole = {"status": "in_progress", "rows_read": 1200, "rows": 3, "request_counts": counts}
    return {**whole, "stages": list(stages), **changes}


def _call(number: int, total: int, completed: int, failed: int = 0) -> dict[str, Any]:
    counts = {"total": total, "completed": completed, "failed": failed}
    return {"number": number, "batch_id": f"b{number}", "request_counts": counts, "failed": failed}


def test_a_line_says_how_far_a_pipeline_is() -> None:
    split = {"number": 0, "request_counts": None, "failed": 1}

    assert (
        pipeline_text(_pipeline(split, _call(1, 7, 4, 1)))
        == "in_progress, 1,200 rows read, 5/7 requests, 3 rows through, 2 failed"
    )
    fresh = _pipeline(request_counts={"total": 0, "completed": 0, "failed": 0}, rows_read=0, rows=0)
    assert pipeline_text(fresh) == "in_progress, 0 rows read, - requests, 0 rows through"


def test_the_first_call_that_is_behind_is_the_one_that_waits() -> None:
    filtered = {"number": 0, "request_counts": None, "failed": 0}
    behind = _call(2, 5, 1, 2)

    assert waiting_stage(_pipeline(filtered, _call(1, 3, 2, 1), behind, _call(3, 1, 0))) is behind
    assert waiting_stage(_pipeline(filtered, _call(1, 3, 3))) is None


class _Explains(BaseHTTPRequestHandler):
    """A gateway that says why each batch waits."""

    def do_GET(self) -> None:
        body = json.dumps({"waits_for": {"message": f"It waits at {self.path}."}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Standard error is what is looked at."""


def test_what_a_stage_waits_for_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    with HTTPServer(("127.0.0.1", 0), _Explains) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        gateway = Gateway(Target("x", f"http://127.0.0.1:{server.server_port}/v1", "sk-x"))
        with closing(gateway), PipelineProgress(gateway, "pipe_1") as progress:
            progress.show(_pipeline(_call(0, 3, 3), _call(1, 4, 2)))
        server.shutdown()

    assert capsys.readouterr().err == (
        "pipe_1: in_progress, 1,200 rows read, 5/7 requests, 3 rows through, "
        "stage 1: It waits at /v1/batches/b1/explain\n"
    )
