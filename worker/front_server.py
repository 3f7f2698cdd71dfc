"""Starts front processes by forking, so that vLLM is imported once and a new front takes a second.

python -m worker.front_server FD
"""

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping

import uvloop

from worker.collector import collector_paused
from worker.front import Front


class FrontServer:
    """The process that forks, from the side of the replica. It ends with the replica."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process, self._control = _started()

    @property
    def pid(self) -> int:
        return self._process.pid

    def open(self) -> socket.socket:
        """A new front's end of its connection. Blocks for a moment."""
        ours, theirs = socket.socketpair()
        with theirs, self._lock:
            if self._process.poll() is not None:
                self._control.close()
                self._process, self._control = _started()
            socket.send_fds(self._control, [b"."], [theirs.fileno()])
        return ours


def serve(control: socket.socket) -> socket.socket | None:
    """Fork a process for each connection that comes over `control`.

    Returns the connection in each of them, and None in this one when the replica is gone.
    """
    with collector_paused():
        import vllm.entrypoints.openai.api_server
        import vllm.v1.engine.async_llm  # noqa: F401  # for the fronts
    # What all fronts share stays one copy.
    gc.freeze()
    # Nobody waits for them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not descriptors:
            return None
        connection = socket.socket(fileno=descriptors[0])
        if os.fork() == 0:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return connection
        connection.close()


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """What a front inherits: nothing of Ray's, whose token opens the cluster."""
    return {name: value for name, value in environment.items() if not name.startswith("RAY_")}


def _started() -> tuple["subprocess.Popen[bytes]", socket.socket]:
    """The process, and what it takes connections from."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-m", "worker.front_server", str(theirs.fileno())]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env=inherited(os.environ),
        )
    return process, ours


async def _front(replica: socket.socket) -> None:
    await Front().run(replica)


if __name__ == "__main__":
    if (replica := serve(socket.socket(fileno=int(sys.argv[1])))) is not None:
        uvloop.run(_front(replica))
