"""Pictures in requests, in S3 and at a host that the operator allows are seen alike."""

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cli.fleet.catalog import VISION_MODEL
from cli.fleet.credentials import TENANT
from examples.images.drawing import pictures
from tests.e2e.conftest import COLD_SECONDS, MEDIA_HOST, RunningFleet, request_lines

_PICTURES = [file for _, file in pictures()]


class _Host(BaseHTTPRequestHandler):
    """Has the first picture; is busy at first, and always at `/busy.png`."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        is_busy = self.path == "/busy.png" or self.asked.count(self.path) == 1
        self.send_response(503 if is_busy else 200)
        self.end_headers()
        if not is_busy:
            self.wfile.write(_PICTURES[0])

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def _host() -> Iterator[tuple[str, list[str]]]:
    """Its address, and the paths that it was asked for."""
    asked: list[str] = []
    handler = type("_Asked", (_Host,), {"asked": asked})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{MEDIA_HOST}:{server.server_port}", asked
        server.shutdown()


def _data(picture: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(picture).decode()


def _asks(url: str) -> dict[str, Any]:
    """What a picture is, in so many words that two pictures have two answers."""
    picture = {"type": "image_url", "image_url": {"url": url}}
    parts = [{"type": "text", "text": "What is it?"}, picture]
    return {
        "model": VISION_MODEL,
        "messages": [{"role": "user", "content": parts}],
        "max_tokens": 16,
        "temperature": 0,
    }


def _answer(result: dict[str, Any]) -> tuple[str, int]:
    body = result["response"]["body"]
    return body["choices"][0]["message"]["content"], body["usage"]["prompt_tokens"]


async def test_a_picture_is_the_same_from_a_row_from_s3_and_from_an_allowed_host(
    fleet: RunningFleet,
) -> None:
    storage = fleet.storage()
    key = f"inbox/{TENANT}/first.png"
    await storage.put(key, _PICTURES[0])
    storage.close()
    with _host() as (host, asked):
        batch = fleet.submit(
            request_lines(
                "/v1/chat/completions",
                [
                    _asks(_data(_PICTURES[0])),
                    _asks(f"s3://batchyard/{key}"),
                    _asks(f"{host}/first.png"),
                    _asks(_data(_PICTURES[-1])),
                    _asks(f"{host}/busy.png"),
                    _asks(f"s3://batchyard/inbox/{TENANT}/nowhere.png"),
                ],
            ),
            "/v1/chat/completions",
        )
        ended = fleet.wait(batch, seconds=COLD_SECONDS)
        # The gateway fetches what a live call names.
        urls = _data(_PICTURES[0]), f"s3://batchyard/{key}", f"{host}/first.png"
        at_once = [fleet.client.chat.completions.create(**_asks(url)) for url in urls]

    assert ended.status == "completed"
    assert len({one.choices[0].message.content for one in at_once}) == 1
    found = {one["custom_id"]: _answer(one) for one in fleet.results(ended)}
    assert found["row-0"] == found["row-1"] == found["row-2"]
    assert found["row-3"] != found["row-0"]
    # It was busy once, and was asked again; the other one stayed so, and cost its own row.
    assert asked.count("/first.png") == 3
    assert asked.count("/busy.png") == 3
    failed = {one["custom_id"]: one["response"]["body"]["error"] for one in fleet.errors(ended)}
    assert failed.keys() == {"row-4", "row-5"}
    assert all(one["param"] == "messages.0.content.1.image_url" for one in failed.values())
    assert "503" in failed["row-4"]["message"]


def test_a_url_elsewhere_fails_its_row_before_anything_runs(fleet: RunningFleet) -> None:
    with _host() as (host, asked):
        other = host.replace(MEDIA_HOST, "localhost")
        batch = fleet.submit(
            request_lines("/v1/chat/completions", [_asks(f"{other}/first.png")]),
            "/v1/chat/completions",
        )
        ended = fleet.wait(batch)

    [failed] = fleet.errors(ended)
    assert MEDIA_HOST in failed["response"]["body"]["error"]["message"]
    assert asked == []
