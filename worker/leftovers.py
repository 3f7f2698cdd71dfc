"""Removes what processes of Ray and vLLM leave behind on this node; nothing else does."""

import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

#: The beginning of the name of a folder with an adapter, for the process that has it.
ADAPTER_FOLDER = "batchyard-adapter-{}-"
#: Longer than an operator looks for the log of a process that ended.
_KEPT_SECONDS = 3 * 86_400.0
#: Logs of single processes: each job, and each process of a wave, has its own.
_LOGS = ("job-driver-*.log", "worker-*.out*", "worker-*.err*", "python-core-worker-*.log*")
#: Where processes of an engine meet, by name of a file in the folder for temporary ones.
_MEETINGS = ("vllm_dist_*",)
#: Sockets between an engine's front and its core, by a UUID alone. Killed, they leave them there.
_SOCKETS = ("-".join("[0-9a-f]" * size for size in (8, 4, 4, 4, 12)),)
#: Longer than from a socket's making to its first listening.
_SOCKET_SECONDS = 600.0


def sweep_leftovers(logs: Path | None = None, *, now: float | None = None) -> int:
    """Remove old logs from Ray's folder `logs` and old files of vLLM; returns how many."""
    now = time.time() if now is None else now
    temporary = Path(tempfile.gettempdir())
    removed = 0
    for path in (*_found(temporary, _MEETINGS), *_found(logs, _LOGS), *_found(temporary, _SOCKETS)):
        # Another process may be faster, and other users' files are theirs.
        with suppress(OSError):
            age = now - path.stat().st_mtime
            is_old = path.is_file() and age > _KEPT_SECONDS
            if is_old or (path.is_socket() and age > _SOCKET_SECONDS and _is_deserted(path)):
                path.unlink()
                removed += 1
    for folder in _found(temporary, (ADAPTER_FOLDER.format("*") + "*",)):
        if not psutil.pid_exists(int(folder.name.split("-")[2])):
            shutil.rmtree(folder, ignore_errors=True)
            removed += 1
    return removed


def sweep_regularly(logs: Path | None, *, every_seconds: float = 3600.0) -> threading.Event:
    """`sweep_leftovers` now and again and again, in a thread that ends with the process.

    It ends before if the event that is returned is set.
    """
    ended = threading.Event()

    def sweep() -> None:
        while not ended.is_set():
            sweep_leftovers(logs)
            ended.wait(every_seconds)

    threading.Thread(target=sweep, daemon=True, name="leftovers").start()
    return ended


def logs_of_ray() -> Path | None:
    """The folder with the logs of this node's Ray; None where this process has none."""
    from ray._private.worker import global_worker  # Ray tells it nowhere else

    node = global_worker.node
    return None if node is None else Path(node.get_logs_dir_path())


def _is_deserted(path: Path) -> bool:
    """Whether nobody listens at a socket. An engine that does may be older than any bound."""
    with socket.socket(socket.AF_UNIX) as client:
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            return True
    return False


def _found(folder: Path | None, patterns: tuple[str, ...]) -> Iterator[Path]:
    if folder is not None:
        for pattern in patterns:
            yield from folder.glob(pattern)
