"""An HTTP proxy before S3 that answers some calls in its place, with S3's own words."""

import http.client
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import urlsplit

_ERROR = "<Error><Code>{}</Code><Message>No.</Message></Error>"
_PATIENCE_SECONDS = 60.0
#: Of one connection alone; what follows is said anew for each of the two.
_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


class Refusal(NamedTuple):
    """What is said instead of S3's own answer."""

    status: int
    code: str
    #: Whether S3 does all the same what it was asked.
    after_the_work: bool = False


#: Whether a call, of this method and path, is refused.
Judge = Callable[[str, str], Refusal | None]


class S3Proxy:
    """Lets everything through until it has a judge. Works in threads, whatever a loop does."""

    def __init__(self, endpoint: str) -> None:
        parts = urlsplit(endpoint)
        self._target = parts.hostname or "", parts.port or 80
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        self.judge: Judge | None = None
        #: How often each call came, by method and path with its query.
        self.tries: Counter[tuple[str, str]] = Counter()
        self.max_tries = 0
        self.refused = 0
        self._lock = threading.Lock()

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def decide(self, method: str, path: str) -> Refusal | None:
        """Count a call and judge it; a judge may take its time."""
        with self._lock:
            self.tries[method, path] += 1
            self.max_tries = max(self.max_tries, self.tries[method, path])
        # Read once: a test may take the judge away meanwhile.
        judge = self.judge
        refusal = judge(method, path) if judge else None
        with self._lock:
            self.refused += refusal is not None
        return refusal

    def forward(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, list[tuple[str, str]], bytes]:
        """S3's own status, headers and body."""
        connection = http.client.HTTPConnection(*self._target, timeout=_PATIENCE_SECONDS)
        try:
            # With the client's own `Host`, which it has signed.
            connection.request(method, path, body=body, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, proxy: S3Proxy) -> None:
        self.proxy = proxy
        super().__init__(("127.0.0.1", 0), _Call)


class _Call(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # A head and its body are two writes.
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, _Server)
        proxy = server.proxy
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        refusal = proxy.decide(self.command, self.path)
        status, headers, answer = 0, list[tuple[str, str]](), b""
        if refusal is None or refusal.after_the_work:
            try:
                forwarded = proxy.forward(self.command, self.path, body, dict(self.headers.items()))
            except (OSError, http.client.HTTPException):
                self.close_connection = True
                return
            status, headers, answer = forwarded
        if refusal is not None:
            status, headers = refusal.status, [("content-type", "application/xml")]
            answer = _ERROR.format(refusal.code).encode()
        self._answer(status, headers, answer)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815  # the base class's names

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response_only(status)
        length = str(len(body))
        for name, value in headers:
            if name.lower() not in _HOP:
                self.send_header(name, value)
            elif name.lower() == "content-length" and self.command == "HEAD":
                length = value
        self.send_header("content-length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing: a test's output is for its figures."""


@contextmanager
def s3_proxy(endpoint: str) -> Iterator[S3Proxy]:
    """A proxy before this S3 for the block."""
    proxy = S3Proxy(endpoint)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.close()
