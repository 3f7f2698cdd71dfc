"""A server of one file that breaks connections, as networks do."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cli.client.contexts import Target
from cli.client.gateway import Gateway


class BreakingServer(ThreadingHTTPServer):
    """Serves `content`, and breaks each answer after `break_after` bytes."""

    daemon_threads = True

    def __init__(self, content: bytes, *, break_after: int, knows_ranges: bool) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content = content
        self.break_after = break_after
        self.knows_ranges = knows_ranges
        #: Bytes of the file that were sent, of all answers together.
        self.sent = 0


class _Handler(BaseHTTPRequestHandler):
    server: BreakingServer

    def do_GET(self) -> None:
        server = self.server
        if not self.path.endswith("/content"):
            self._begin(200, len(body := json.dumps({"bytes": len(server.content)}).encode()))
            self.wfile.write(body)
            return
        start, status = 0, 200
        if server.knows_ranges and (asked := self.headers["range"]):
            start, status = int(asked.removeprefix("bytes=").removesuffix("-")), 206
        left = server.content[start:]
        self._begin(status, len(left))
        # Without ranges, each answer gets a little further, so that the end is reached.
        allowed = server.break_after + (0 if server.knows_ranges else server.sent)
        server.sent += len(left[:allowed])
        self.wfile.write(left[:allowed])

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the parent's name
        pass

    def _begin(self, status: int, length: int) -> None:
        self.close_connection = True
        self.send_response(status)
        self.send_header("content-length", str(length))
        self.end_headers()


@contextmanager
def breaking(
    content: bytes, *, break_after: int, knows_ranges: bool = True
) -> Iterator[tuple[BreakingServer, Gateway]]:
    """Such a server, and a gateway's client that speaks to it."""
    server = BreakingServer(content, break_after=break_after, knows_ranges=knows_ranges)
    thread = threading.Thread(target=server.serve_forever, args=[0.01])
    thread.start()
    gateway = Gateway(Target("x", f"http://127.0.0.1:{server.server_port}/v1", "sk-x"))
    try:
        yield server, gateway
    finally:
        gateway.close()
        server.shutdown()
        thread.join()
        server.server_close()
