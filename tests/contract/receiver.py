"""A receiver of webhooks on this machine, in a thread."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Delivery(NamedTuple):
    """One call of a receiver."""

    headers: dict[str, str]
    body: bytes


class Receiver:
    """Takes events, and answers with the given statuses, then with 200."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.statuses: list[int] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): text for name, text in self.headers.items()}
                receiver.deliveries.append(Delivery(headers, body))
                self.send_response(receiver.statuses.pop(0) if receiver.statuses else 200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Not among the tests' output."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/hook"

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
