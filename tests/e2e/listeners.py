"""Every socket on which a process of a fleet listens."""

import re
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

import psutil

from cli.servers.process import RUN_DIR_VARIABLE
from tests.processes import command, connections, variable

#: What the kernel calls a socket that listens, and a UDP socket that takes what anybody sends.
_LISTENS, _UNCONNECTED = "0A", "07"


class Listener(NamedTuple):
    """One listening socket."""

    host: str
    port: int
    #: The process that holds it, and its command, which may change; 0 where none is found.
    pid: int
    command: str

    @property
    def is_local(self) -> bool:
        return ip_address(self.host).is_loopback

    @property
    def identity(self) -> tuple[str, int, int]:
        """The same for as long as the socket is there."""
        return self[:3]

    def address(self, machine: str = "127.0.0.1") -> str:
        """Where it can be reached, given an address of its machine."""
        host = machine if self.host in ("0.0.0.0", "::", "::1") else self.host
        return f"{host}:{self.port}"


def listeners(run_dir: Path, pids: list[int]) -> list[Listener]:
    """Those of these processes, their descendants, and all that carry the fleet's mark."""
    found = {
        # IPv6 sockets show addresses of IPv4 in their own way.
        Listener(
            connection.laddr.ip.removeprefix("::ffff:"),
            connection.laddr.port,
            process.pid,
            command(process),
        )
        for process in _processes(run_dir, pids)
        for connection in connections(process)
        # A UDP socket that nobody has connected takes what anybody sends.
        if connection.status == psutil.CONN_LISTEN
        or (connection.status == psutil.CONN_NONE and not connection.raddr)
    }
    return sorted(found)


def listeners_beside(pid: int) -> list[Listener]:
    """All of the network in which the process lives, such as that of a container; takes root."""
    network = _network(pid)
    holders = {
        socket: process
        for process in psutil.process_iter()
        if _network(process.pid) == network
        for socket in _sockets(process.pid)
    }
    found = set()
    for protocol in ("tcp", "tcp6", "udp", "udp6"):
        # psutil reads the sockets of its own network alone.
        for line in Path(f"/proc/{pid}/net/{protocol}").read_text().splitlines()[1:]:
            _, local, _, status, *_, inode = line.split()[:10]
            if status == (_LISTENS if protocol.startswith("tcp") else _UNCONNECTED):
                host, port = _decoded(local)
                holder = holders.get(inode)
                owner = (holder.pid, command(holder)) if holder else (0, "")
                found.add(Listener(host, port, *owner))
    return sorted(found)


def _decoded(address: str) -> tuple[str, int]:
    """Out of the kernel's words for an address and a port."""
    host, port = address.split(":")
    # Four bytes at a time, each four as this machine keeps numbers.
    words = [bytes.fromhex(host[at : at + 8])[::-1] for at in range(0, len(host), 8)]
    decoded = ip_address(b"".join(words))
    return str(getattr(decoded, "ipv4_mapped", None) or decoded), int(port, 16)


def _network(pid: int) -> str:
    """The name of the process's network; empty where it has ended."""
    try:
        return str(Path(f"/proc/{pid}/ns/net").readlink())
    except OSError:
        return ""


def _sockets(pid: int) -> Iterator[str]:
    """The numbers of the sockets that the process has open."""
    try:
        for file in Path(f"/proc/{pid}/fd").iterdir():
            if found := re.fullmatch(r"socket:\[(\d+)\]", str(file.readlink())):
                yield found[1]
    except OSError:
        return


def _processes(run_dir: Path, pids: list[int]) -> set[psutil.Process]:
    found = {psutil.Process(pid) for pid in pids}
    found |= {child for process in found for child in process.children(recursive=True)}
    for process in psutil.process_iter():
        if Path(variable(process, RUN_DIR_VARIABLE)).is_relative_to(run_dir.resolve()):
            found.add(process)
    return found
