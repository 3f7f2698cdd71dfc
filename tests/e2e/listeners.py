"""Every socket on which a process of a fleet listens."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from cli.servers.process import RUN_DIR_VARIABLE


class Listener(NamedTuple):
    """One listening socket."""

    host: str
    port: int
    #: The process that holds it, and its command, which may change.
    pid: int
    command: str

    @property
    def is_local(self) -> bool:
        return self.host in ("127.0.0.1", "::1")

    @property
    def identity(self) -> tuple[str, int, int]:
        """The same for as long as the socket is there."""
        return self[:3]

    @property
    def dialled(self) -> str:
        """Where it can be reached from this machine."""
        return "127.0.0.1" if self.host in ("0.0.0.0", "::", "::1") else self.host


def listeners(run_dir: Path, pids: list[int]) -> list[Listener]:
    """Those of these processes, their descendants, and all that carry the fleet's mark."""
    found = {
        # IPv6 sockets show addresses of IPv4 in their own way.
        Listener(
            connection.laddr.ip.removeprefix("::ffff:"),
            connection.laddr.port,
            process.pid,
            _command(process),
        )
        for process in _processes(run_dir, pids)
        for connection in _connections(process)
        # A UDP socket that nobody has connected takes what anybody sends.
        if connection.status == psutil.CONN_LISTEN
        or (connection.status == psutil.CONN_NONE and not connection.raddr)
    }
    return sorted(found)


def _processes(run_dir: Path, pids: list[int]) -> set[psutil.Process]:
    found = {psutil.Process(pid) for pid in pids}
    found |= {child for process in found for child in process.children(recursive=True)}
    for process in psutil.process_iter():
        try:
            mark = process.environ().get(RUN_DIR_VARIABLE, "")
        except psutil.Error:
            continue
        if Path(mark).is_relative_to(run_dir.resolve()):
            found.add(process)
    return found


def _connections(process: psutil.Process) -> Iterator[Any]:
    try:
        yield from process.net_connections("inet")
    except psutil.NoSuchProcess:
        return


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""
