"""What the machine needs before anything is started; each error says what to do."""

import psutil

from cli.servers.ports import is_free
from shared.errors import SetupError

#: For the demo's two engines, Ray and the servers, on a machine without a GPU.
MIN_MEMORY_BYTES = 6 * 1024**3
_GIBIBYTE = 1024**3


def require_memory(available_bytes: int | None = None) -> None:
    """Raise SetupError when too little memory is free; None asks the machine."""
    if available_bytes is None:
        available_bytes = psutil.virtual_memory().available
    if available_bytes < MIN_MEMORY_BYTES:
        raise SetupError(
            f"{available_bytes / _GIBIBYTE:.1f} GiB of memory are free; the fleet with its engines "
            f"needs {MIN_MEMORY_BYTES / _GIBIBYTE:.0f}. End other programs, or use a larger "
            "machine."
        )


def require_free(port: int) -> None:
    """Raise SetupError when another program listens on the port that was asked for."""
    if not is_free(port):
        raise SetupError(
            f"--port {port} is taken by another program. End it, or choose another port."
        )


def listens(pid: int, port: int) -> bool:
    """Whether this process of ours listens on the TCP port, which others may do as well."""
    try:
        connections = psutil.Process(pid).net_connections("tcp")
    except psutil.NoSuchProcess:
        return False
    return any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in connections)
