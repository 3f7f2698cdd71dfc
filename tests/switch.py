"""Leads each new connection to the first of several servers that takes it, as balancers do."""

import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from socketserver import BaseRequestHandler, ThreadingTCPServer


class Switch(ThreadingTCPServer):
    """Listens on 127.0.0.1 from its making until `close`."""

    daemon_threads = True

    def __init__(self, ports: Sequence[int]) -> None:
        super().__init__(("127.0.0.1", 0), _Connection)
        #: Those of the servers, in the order in which they are tried.
        self.ports = ports
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def close(self) -> None:
        """Take no more connections."""
        self.shutdown()
        self.server_close()

    def handle_error(self, *_: object) -> None:
        """Connections that break are what tests are about."""


class _Connection(BaseRequestHandler):
    server: Switch

    def handle(self) -> None:
        for port in self.server.ports:
            with suppress(OSError):
                server = socket.create_connection(("127.0.0.1", port), 5)
                break
        else:
            return
        with server:
            server.settimeout(None)
            back = threading.Thread(target=_copy, args=(server, self.request), daemon=True)
            back.start()
            _copy(self.request, server)
            back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while some := source.recv(65_536):
            target.sendall(some)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
