"""Lets vLLM fork its core from the replica's fork server, where it would spawn a process.

vLLM starts its core as a process of Python's `multiprocessing`; so this is one.
"""

import io
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import context, popen_fork, reduction, spawn, util
from multiprocessing.connection import wait
from typing import Any, cast

import structlog

from worker.fork_server import ForkServer, Kind, inherited

log = structlog.get_logger()

#: What is known of a core's end is that it was none of ours.
_FAILED = 1
_PID_BYTES = 4
#: How long a server that ends may take to do so, in seconds, before it counts as one that lives.
_END_SECONDS = 2.0
#: Of servers: one that ends just then is followed by another.
_TRIES = 2


def why_spawned(config: Any) -> str | None:
    """What in vLLM's configuration needs a core that is spawned; None if it can be a fork."""
    if config.parallel_config.numa_bind:
        # vLLM starts the core by another program, which binds it.
        return "numa_bind"
    media = config.model_config.multimodal_config
    if media is not None and media.mm_tensor_ipc == "torch_shm":
        # The core inherits the descriptors of a queue.
        return "mm_tensor_ipc: torch_shm"
    return None


@contextmanager
def forking_cores(server: ForkServer | None, *, spawned_for: str | None = None) -> Iterator[None]:
    """Let cores that vLLM starts meanwhile be forks of the server, if it can.

    `spawned_for` is what prevents it; None is nothing.
    """
    from vllm.v1.engine import utils as vllms

    # It exports nothing of this kind.
    utils: Any = vllms
    if server is not None and spawned_for is None and not server.can_fork_cores:
        spawned_for = "CUDA is in use"
    if server is None or spawned_for is not None:
        if server is not None:
            log.info("engine.core_spawned", reason=spawned_for)
        yield
        return
    before = utils.get_mp_context
    utils.get_mp_context = lambda: _ForkContext(server)
    try:
        yield
    finally:
        utils.get_mp_context = before


class _ForkContext(context.SpawnContext):
    """As vLLM knows `multiprocessing.get_context("spawn")`."""

    def __init__(self, server: ForkServer) -> None:
        super().__init__()
        self._server = server

    def Process(self, *args: Any, **options: Any) -> "ForkedCore":  # type: ignore[override]  # noqa: N802  # multiprocessing's name
        process = ForkedCore(*args, **options)
        process.server = self._server
        return process


class ForkedCore(context.SpawnProcess):
    """A process that begins with what the server has imported, and ends with the server."""

    server: ForkServer | None = None

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802  # multiprocessing's name
        return _Fork(process_obj)

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        #: The replica's own, which has more than when the server was started.
        self._environment = inherited(os.environ)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "server"}

    def run(self) -> None:
        """In the new process."""
        os.environ.clear()
        os.environ.update(self._environment)
        super().run()


class _Fork(popen_fork.Popen):
    """What `multiprocessing` holds of such a process in the one that started it."""

    method = "spawn"

    def duplicate_for_child(self, descriptor: int) -> int:
        """Refuse it: the server has only what it was started with."""
        raise NotImplementedError(f"a forked core takes no descriptor {descriptor}")

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """The exit code, None while the process runs. The server is its parent, not this one."""
        if self.returncode is None and wait(
            [self.sentinel], timeout=0 if flag == os.WNOHANG else None
        ):
            self.returncode = _FAILED
        return self.returncode

    def _launch(self, process_obj: ForkedCore) -> None:
        assert process_obj.server is not None  # noqa: S101  # `_ForkContext` has set it
        what = io.BytesIO()
        context.set_spawning_popen(cast("Any", self))
        try:
            reduction.dump(spawn.get_preparation_data(process_obj.name), what)
            reduction.dump(process_obj, what)
        finally:
            context.set_spawning_popen(None)
        connection, self.pid = _forked(process_obj.server)
        self.finalizer = util.Finalize(self, connection.close)
        #: Nothing ever comes but the end.
        self.sentinel = connection.fileno()
        connection.sendall(what.getbuffer())


def _forked(server: ForkServer) -> tuple[socket.socket, int]:
    """The connection to a new process, and its id. Raises OSError where none can be made."""
    for _ in range(_TRIES):
        connection = server.open(Kind.CORE)
        pid = connection.recv(_PID_BYTES, socket.MSG_WAITALL)
        if len(pid) == _PID_BYTES:
            return connection, int.from_bytes(pid, "little")
        connection.close()
        if not server.ends_within(_END_SECONDS):
            break
    raise OSError("the fork server has made no process")
