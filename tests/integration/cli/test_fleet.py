"""What `batchyard up` knows of several gateways at one port."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.fleet import Fleet, Options
from cli.servers import Child
from cli.servers.http import is_well
from tests.eventually import wait_until

#: Is bound at once and listens once it may, as a gateway that starts.
GATEWAY = """
import pathlib, socket, sys, time
from http.server import BaseHTTPRequestHandler, HTTPServer

class Ready(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

port, bound, may_listen = int(sys.argv[1]), pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
server = HTTPServer(("127.0.0.1", port), Ready, bind_and_activate=False)
server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
server.server_bind()
bound.touch()
while not may_listen.exists():
    time.sleep(0.05)
server.server_activate()
server.serve_forever()
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """One that has started nothing but two gateways."""
    fleet = Fleet(Options(tmp_path, gateways=2), report=print)
    fleet.gateways = [
        Child(
            name,
            [sys.executable, "-c", GATEWAY, str(fleet.port)]
            + [str(tmp_path / f"{name}.{what}") for what in ("bound", "may-listen")],
            tmp_path,
        )
        for name in ("gateway", "gateway-2")
    ]
    yield fleet
    fleet.stop()


def test_a_fleet_is_ready_when_all_of_its_gateways_listen(fleet: Fleet, tmp_path: Path) -> None:
    (tmp_path / "gateway.may-listen").touch()
    for gateway in fleet.gateways:
        gateway.start()
    wait_until(lambda: len(list(tmp_path.glob("*.bound"))) == 2)
    wait_until(lambda: is_well(f"http://127.0.0.1:{fleet.port}/readyz"))
    assert not fleet._is_ready()  # noqa: SLF001  # `start` needs all servers

    (tmp_path / "gateway-2.may-listen").touch()

    wait_until(fleet._is_ready)  # noqa: SLF001  # as above
    fleet.gateways[1].kill()
    assert not fleet._is_ready()  # noqa: SLF001  # as above
