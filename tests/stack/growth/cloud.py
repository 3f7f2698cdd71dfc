"""What a cloud is to Ray's autoscaler, for a test: machines that are containers."""

import itertools
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple


class Machine(NamedTuple):
    """A container, and how Ray's autoscaler has labelled it."""

    address: str
    tags: dict[str, str]


class Cloud:
    """Makes and removes machines when it is asked over HTTP."""

    def __init__(self, make: Callable[[str, str], str], remove: Callable[[str], None]) -> None:
        """`make` starts a machine of this name and type, and returns its address."""
        self._make, self._remove = make, remove
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self.machines: dict[str, Machine] = {}
        #: What was done, and to which machine.
        self.done: list[tuple[str, str]] = []

    def add(self, name: str, address: str, tags: Mapping[str, str]) -> None:
        """Know a machine that somebody else has started."""
        self.machines[name] = Machine(address, dict(tags))

    def answer(self, method: str, name: str, body: bytes) -> bytes:
        """What the autoscaler's class asks for."""
        with self._lock:
            match method:
                case "POST":
                    tags = json.loads(body)
                    name = f"machine-{next(self._numbers)}"
                    self.add(name, self._make(name, tags["ray-user-node-type"]), tags)
                    self.done.append(("made", name))
                case "PUT" if name in self.machines:
                    self.machines[name].tags.update(json.loads(body))
                case "DELETE" if self.machines.pop(name, None):
                    self._remove(name)
                    self.done.append(("removed", name))
            return json.dumps({name: one._asdict() for name, one in self.machines.items()}).encode()


@contextmanager
def served(cloud: Cloud, address: str) -> Iterator[str]:
    """The URL at which the cloud answers, on this address of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            body = cloud.answer(self.command, self.path.strip("/"), self.rfile.read(length))
            # A head that is killed does not wait for its answer.
            with suppress(ConnectionError):
                self.send_response(200)
                self.end_headers()
                self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815  # the library's names

        def log_message(self, format: str, *_: Any) -> None:  # noqa: A002  # the library's name
            del format

    with ThreadingHTTPServer((address, 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://{address}:{server.server_address[1]}"
        finally:
            server.shutdown()
