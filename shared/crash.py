"""Named points at which a test may kill the process, to prove that nothing is lost there."""

import os
import signal


def point(name: str) -> None:
    """SIGKILL this process if the environment names this point; otherwise do nothing.

    The name is first appended to the file BATCHYARD_CRASH_LOG, and the point is passed unharmed if
    that file names it already: each process dies at its point once.
    """
    if os.environ.get("BATCHYARD_CRASH_AT") != name:
        return
    if path := os.environ.get("BATCHYARD_CRASH_LOG"):
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        if name in os.read(descriptor, 65_536).decode().split():
            os.close(descriptor)
            return
        os.write(descriptor, f"{name}\n".encode())
        os.close(descriptor)
    os.kill(os.getpid(), signal.SIGKILL)
