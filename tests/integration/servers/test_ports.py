import socket
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import pytest

from cli.servers import Ports, free_port
from shared.errors import SetupError


def test_a_free_port_can_be_listened_on() -> None:
    with socket.create_server(("127.0.0.1", free_port())) as server:
        assert server.getsockname()[0] == "127.0.0.1"


def test_a_port_is_kept_for_the_next_run_of_the_same_directory(tmp_path: Path) -> None:
    first = Ports(tmp_path).get("redis")

    assert Ports(tmp_path).get("redis") == first


def test_two_names_never_share_a_port(tmp_path: Path) -> None:
    ports = Ports(tmp_path)

    assert len({ports.get(f"server-{number}") for number in range(50)}) == 50


def test_a_port_taken_by_somebody_else_is_named_with_both_ways_out(tmp_path: Path) -> None:
    ports = Ports(tmp_path)
    port = ports.get("redis")

    with socket.create_server(("127.0.0.1", port)), pytest.raises(SetupError) as refused:
        ports.require_free("redis")

    assert f"Port {port}, kept for redis" in str(refused.value)
    assert str(tmp_path / "ports.json") in str(refused.value)
    assert "Stop that program" in str(refused.value)


def test_a_listener_on_every_address_takes_the_port_too(tmp_path: Path) -> None:
    ports = Ports(tmp_path)

    with (
        socket.create_server(("0.0.0.0", ports.get("redis"))),
        pytest.raises(SetupError, match="is in use"),
    ):
        ports.require_free("redis")


def test_a_port_is_free_again_after_its_connections_were_closed(tmp_path: Path) -> None:
    ports = Ports(tmp_path)
    address = ("127.0.0.1", ports.get("redis"))
    with socket.create_server(address) as server, socket.create_connection(address):
        # The server's side closes first, and so keeps the port in TIME_WAIT.
        server.accept()[0].close()

    ports.require_free("redis")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "ports.json").write_text("[1")

    with pytest.raises(SetupError, match=r"ports\.json is damaged; delete it"):
        Ports(tmp_path).get("redis")


def test_a_port_that_was_picked_is_nobody_elses_before_its_server_starts() -> None:
    """As long as there are shares: what two processes pick is never the same."""
    pick = "from cli.servers import free_port; print(*(free_port() for _ in range(400)), flush=1)"
    others = [
        subprocess.Popen([sys.executable, "-c", f"{pick}; input()"], stdin=PIPE, stdout=PIPE)
        for _ in range(3)
    ]

    picked = [free_port() for _ in range(400)]
    for process in others:
        assert process.stdout is not None
        picked += map(int, process.stdout.readline().split())
    # None ends before all have picked: its share would be the next one's.
    for process in others:
        process.communicate(b"\n")

    assert len(picked) == len(set(picked)) == 4 * 400
