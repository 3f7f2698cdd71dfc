"""A host of somebody else's with media, well and badly behaved."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

#: What it has at every path that is not special.
FILE = b"\x89PNG and more"


class _Host(BaseHTTPRequestHandler):
    """A host that somebody else owns."""

    def do_GET(self) -> None:
        self.server.paths.append(self.path)  # type: ignore[attr-defined]  # ours
        if self.path == "/redirect":
            self.send_response(302)
            self.send_header("location", "/secret")
            self.end_headers()
        elif self.path == "/broken" or self.server.paths.count("/busy") in (1, 2):  # type: ignore[attr-defined]  # ours
            self.send_response(503)
            self.end_headers()
        elif self.server.paths.count("/cut") in (1, 2):  # type: ignore[attr-defined]  # ours
            self.close_connection = True
        elif self.path == "/endless":
            self.send_response(200)
            self.end_headers()
            while True:
                self.wfile.write(b"x" * 65536)
        else:
            self.send_response(200)
            self.send_header("content-length", str(len(FILE)))
            self.end_headers()
            self.wfile.write(FILE)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


class MediaHost(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Host)
        self.paths: list[str] = []

    def handle_error(self, *_: Any) -> None:
        """Whoever has enough hangs up."""


@contextmanager
def media_host() -> Iterator[MediaHost]:
    """One on a port of its own, until the context ends."""
    server = MediaHost()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
