import asyncio
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

from batchyard.calls.batches import BatchSettings, CallBatches
from batchyard.calls.collecting import Calls
from cli.client.contexts import Target

CHAT = "/v1/chat/completions"
#: Nothing listens there.
_NOBODY = Target("nobody", "http://127.0.0.1:1/v1", "sk-x")


def _calls(target: Target = _NOBODY, run: str | None = None) -> Calls:
    batches = CallBatches(target, BatchSettings(), run=run)
    return Calls(batches, collect_seconds=0.0, max_calls=1000)


@contextmanager
def _refusing(asked: list[str]) -> Iterator[Target]:
    """Something at which no key is known; it notes what it was asked."""

    class Refusing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            body = json.dumps({"error": {"message": "Incorrect API key provided."}}).encode()
            self.send_response(401)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Refusing)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield Target("here", f"http://127.0.0.1:{server.server_port}/v1", "sk-x")
    finally:
        server.shutdown()
        server.server_close()


async def test_a_call_has_an_answer_though_the_disk_takes_no_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    calls = _calls()

    answer = await asyncio.wait_for(calls.answer(CHAT, {"model": "m"}), timeout=60)
    await calls.finish()

    assert answer.status == 503
    assert "FileNotFoundError" in answer.body["error"]["message"]


async def test_a_run_that_could_not_look_for_its_batches_says_why_and_looks_again() -> None:
    asked: list[str] = []
    with _refusing(asked) as target:
        calls = _calls(target, run="night")
        answers = [await calls.answer(CHAT, {"model": "m"}) for _ in range(2)]
        await calls.finish()

    assert [answer.status for answer in answers] == [401, 401]
    assert "Incorrect API key" in answers[0].body["error"]["message"]
    assert len(asked) == 2
