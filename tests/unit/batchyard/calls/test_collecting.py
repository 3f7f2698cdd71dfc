import asyncio
import hashlib
import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from threading import enumerate as enumerate_threads
from typing import Any

import pytest

from batchyard.calls import collecting
from batchyard.calls.answers import Answer
from batchyard.calls.batches import BatchSettings, CallBatches
from batchyard.calls.collecting import Calls, _Call
from cli.client.contexts import Target
from tests.eventually import eventually

CHAT = "/v1/chat/completions"
#: Nothing listens there.
_NOBODY = Target("nobody", "http://127.0.0.1:1/v1", "sk-x")


def _calls(target: Target = _NOBODY, run: str | None = None) -> Calls:
    batches = CallBatches(target, BatchSettings(), run=run)
    return Calls(batches, collect_seconds=0.0, max_calls=1000)


class _Refusing:
    """Something over HTTP that has batches of a run, and refuses all else; notes what it is asked.

    It has a batch for each of these bodies, and is asked for their events until it is `released`.
    """

    def __init__(self, *bodies: Mapping[str, Any]) -> None:
        self.asked: list[str] = []
        self.released = Event()
        self._lines = [_line(one) for one in bodies]
        self._keys: list[str] = []

    def streams(self) -> int:
        """How often it was asked for events."""
        return sum(path.endswith("/events") for path in self.asked)

    def answer(self, method: str, path: str) -> tuple[int, bytes]:
        self.asked.append(path)
        place, _, query = path.removeprefix("/v1/").partition("?")
        kind, _, name = place.partition("/")
        if method == "GET" and place == "batches" and self._lines:
            if query not in self._keys:
                self._keys.append(query)
            number = self._keys.index(query)
            known = {"id": f"b{number}", "status": "in_progress", "input_file_id": f"{number}"}
            found = [known] if number < len(self._lines) else []
            return 200, json.dumps({"data": found}).encode()
        if method == "GET" and kind == "files":
            line = self._lines[int(name.removesuffix("/content"))]
            return 200, line if "/" in name else json.dumps({"bytes": len(line)}).encode()
        if name.endswith("/events"):
            self.released.wait()
        return 401, b'{"error": {"message": "Incorrect API key provided."}}'


class _Slow(_Refusing):
    """It takes files, and takes batches once it is `released`."""

    def answer(self, method: str, path: str) -> tuple[int, bytes]:
        if method == "POST":
            self.asked.append(path)
            if path == "/v1/batches":
                self.released.wait()
            return 200, b'{"id": "made"}'
        return super().answer(method, path)


def _line(body: Mapping[str, Any]) -> bytes:
    content = json.dumps([CHAT, body], sort_keys=True)
    digest = hashlib.sha256(content.encode()).hexdigest()[:40]
    return json.dumps({"custom_id": f"{digest}-1"}).encode() + b"\n"


@contextmanager
def _served(refusing: _Refusing) -> Iterator[Target]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = refusing.answer(self.command, self.path)
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield Target("here", f"http://127.0.0.1:{server.server_port}/v1", "sk-x")
    finally:
        refusing.released.set()
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
    gateway = _Refusing()
    with _served(gateway) as target:
        calls = _calls(target, run="night")
        answers = [await calls.answer(CHAT, {"model": "m"}) for _ in range(2)]
        await calls.finish()

    assert [answer.status for answer in answers] == [401, 401]
    assert "Incorrect API key" in answers[0].body["error"]["message"]
    assert len(gateway.asked) == 2


async def test_a_call_whose_earlier_batch_cannot_be_read_is_not_asked_twice() -> None:
    gateway = _Refusing({"model": "m"})
    gateway.released.set()
    with _served(gateway) as target:
        calls = _calls(target, run="night")
        answer = await calls.answer(CHAT, {"model": "m"})
        await calls.finish()

    assert answer.status == 401
    # No file was sent.
    assert gateway.asked[-1] == "/v1/batches/b0/events"


async def test_earlier_batches_are_read_in_turns_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "_MAX_BATCHES", 2)
    bodies = [{"model": "m", "n": number} for number in range(4)]
    gateway = _Refusing(*bodies)
    with _served(gateway) as target:
        calls = _calls(target, run="night")
        asked = [asyncio.create_task(calls.answer(CHAT, body)) for body in bodies]
        await eventually(lambda: gateway.streams() >= 2)
        threads = sum(thread.name == "batchyard" for thread in enumerate_threads())
        gateway.released.set()
        answers = await asyncio.gather(*asked)
        await calls.finish()

    assert threads == 2
    assert gateway.streams() == len(answers) == 4


async def test_calls_that_wait_for_earlier_batches_at_the_end_are_one_batch() -> None:
    gateway = _Refusing({"model": "another"})
    with _served(gateway) as target:
        calls = _calls(target, run="night")
        asked = [
            asyncio.create_task(calls.answer(CHAT, {"model": "m", "n": number}))
            for number in range(20)
        ]
        await asyncio.sleep(0)
        assert calls.waiting == 20
        await calls.finish()
        await asyncio.gather(*asked)

    assert gateway.asked.count("/v1/files") == 1


async def test_large_calls_are_more_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "_MAX_BYTES", 2500)
    gateway = _Refusing()
    with _served(gateway) as target:
        calls = _calls(target)
        bodies = [{"model": "m", "input": "x" * 1000}] * 4 + [{"model": "m", "input": "x" * 3000}]
        await asyncio.gather(*(calls.answer(CHAT, body) for body in bodies))
        await calls.finish()

    assert gateway.asked == ["/v1/files"] * 3


async def test_a_batch_that_is_still_made_when_nobody_waits_for_it_is_cancelled() -> None:
    gateway = _Slow()
    with _served(gateway) as target:
        calls = _calls(target)
        asked = asyncio.create_task(calls.answer(CHAT, {"model": "m"}))
        await eventually(lambda: "/v1/batches" in gateway.asked)
        asked.cancel()
        ended = asyncio.create_task(calls.finish())
        await asyncio.wait([asked])
        gateway.released.set()
        await ended

    assert "/v1/batches/made/cancel" in gateway.asked


async def test_a_call_costs_the_same_in_a_large_batch() -> None:
    """Of 20,000 calls, each looked at all others when it was answered: half a minute."""
    calls = _calls()
    loop = asyncio.get_running_loop()
    waiting = [_Call(str(number), b"", loop.create_future()) for number in range(20_000)]
    calls._watch("batch_0", waiting)  # noqa: SLF001  # a batch of so many would take minutes

    began = time.process_time()
    for one in waiting:
        one.settle(Answer(200, {}))
    await asyncio.sleep(0)

    assert time.process_time() - began < 5
