"""Forks an engine's core and its front processes from a process that has imported vLLM.

They then start in a second. The imports take place while the replica does its own, and so does the
load of the tokenizer.

python -m worker.fork_server FD
"""

import ctypes
import errno
import gc
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import Enum
from importlib import import_module
from multiprocessing import resource_tracker, spawn
from tempfile import TemporaryFile
from typing import Any

import cloudpickle  # type: ignore[import-untyped]  # it has no types
import structlog

from shared.interpreter import collector_paused
from worker.tokenizer_copies import share_vocabularies

log = structlog.get_logger()

_PR_SET_PDEATHSIG = 1
#: What each call of CUDA's driver answers until somebody has initialised it.
_CUDA_NOT_INITIALIZED = 3
#: The connection to a new process, and where it tells what it shares.
_DESCRIPTORS = 2
#: What the server says once it has imported all: whether a core may be forked from it.
_CAN, _CANNOT = b"+", b"-"
#: What cores and fronts import in any case. What is not there, this version of vLLM does not need.
_COMMON = (
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.engine.async_llm",
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.core.sched.async_scheduler",
)
_ON_CARDS = ("vllm.v1.worker.gpu_worker", "vllm.v1.worker.gpu_model_runner")
_ON_PROCESSORS = ("vllm.v1.worker.cpu_worker", "vllm.v1.worker.cpu_model_runner")


class Kind(Enum):
    """What the server is asked for: a fork, or that its next ones have a tokenizer."""

    FRONT = b"f"
    CORE = b"c"
    TOKENIZER = b"t"


class ForkServer:
    """The process that forks, from the side of the replica. It ends with the replica."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._can_fork_cores: bool | None = None
        self._process, self._control = _started()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def can_fork_cores(self) -> bool:
        """Whether a core can be a fork of it. Blocks until it has imported all."""
        with self._lock:
            self._revive()
            if self._can_fork_cores is None:
                self._can_fork_cores = self._control.recv(1) == _CAN
            return self._can_fork_cores

    def ends_within(self, seconds: float) -> bool:
        """Whether it is about to end: what it has forked ends before its last thread does."""
        with self._lock:
            # `select` knows no descriptors above 1023, of which a busy replica has many.
            waiting = select.poll()
            waiting.register(self._control, select.POLLIN)
            return bool(waiting.poll(1000 * seconds)) and self._has_ended()

    def close(self) -> None:
        """End it, and what it has forked. Where nobody does, it ends with this process."""
        self._control.close()
        self._process.wait()

    def open(self, kind: Kind) -> socket.socket:
        """Our end of the connection to a new process. Blocks for a moment."""
        ours, theirs = socket.socketpair()
        # What processes share has one owner, which is told of by this descriptor.
        tracker = resource_tracker.getfd()
        assert tracker is not None  # noqa: S101  # asking for it has started it
        with theirs, self._lock:
            self._revive()
            socket.send_fds(self._control, [kind.value], [theirs.fileno(), tracker])
        return ours

    def load_tokenizer(self, model_config: Any, *, for_fronts: bool) -> None:
        """Let what is forked from now on have the tokenizer of vLLM's model. Does not wait for it.

        `for_fronts` asks for what only a front looks for, too. A model that brings code of its own
        is left out: what that does to a process, nobody knows.
        """
        if model_config.trust_remote_code:
            return
        # The server may still import, so this is no pipe.
        with TemporaryFile() as file, self._lock:
            cloudpickle.dump((model_config, for_fronts), file)
            file.seek(0)
            self._revive()
            socket.send_fds(self._control, [Kind.TOKENIZER.value], [file.fileno()])

    def _revive(self) -> None:
        """Have another one in place of one that has ended."""
        if self._has_ended():
            self._control.close()
            self._can_fork_cores = None
            self._process, self._control = _started()

    def _has_ended(self) -> bool:
        """Whether it is gone, or about to be: the kernel closes its end before it says so."""
        is_gone = True
        try:
            # What it has said, nobody may have asked for: its end comes behind that.
            while said := self._control.recv(1, socket.MSG_DONTWAIT):
                self._can_fork_cores = said == _CAN
        except BlockingIOError:
            is_gone = False
        except OSError:
            pass
        if is_gone:
            self._process.kill()
            self._process.wait()
        return self._process.poll() is not None


def serve(control: socket.socket) -> tuple[Kind, socket.socket] | None:
    """Fork a process for each connection that comes over `control`.

    Returns what it is and the connection in each of them, and None in this one when the replica is
    gone.
    """
    with collector_paused():
        can_fork_cores = _import_all()
    # What all of them share stays one copy.
    gc.freeze()
    # Nobody waits for them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with suppress(OSError):
        control.send(_CAN if can_fork_cores else _CANNOT)
    server = os.getpid()
    while True:
        kind, descriptors, _, _ = socket.recv_fds(control, 1, _DESCRIPTORS)
        if not kind:
            return None
        if Kind(kind) is Kind.TOKENIZER:
            _load_tokenizer(descriptors)
        elif _is_forked(descriptors):
            _end_with(server)
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            connection, tracker = descriptors
            resource_tracker._resource_tracker._fd = tracker  # type: ignore[attr-defined]  # noqa: SLF001  # as multiprocessing does
            return Kind(kind), socket.socket(fileno=connection)
        for descriptor in descriptors:
            os.close(descriptor)


def _load_tokenizer(descriptors: Sequence[int]) -> None:
    """Load it into vLLM's own caches, where what is forked finds it."""
    from vllm.renderers.hf import _try_get_processor_chat_template
    from vllm.tokenizers import cached_tokenizer_from_config

    with collector_paused():
        try:
            with open(descriptors[0], "rb", closefd=False) as file:  # it has no path
                config, for_fronts = pickle.load(file)  # noqa: S301  # of the replica
            tokenizer = cached_tokenizer_from_config(config)
            if for_fronts and not config.is_multimodal_model:
                # vLLM looks for a template beside the tokenizer's, and finds the tokenizer again.
                _try_get_processor_chat_template(
                    tokenizer,
                    revision=config.revision,
                    code_revision=config.code_revision,
                    trust_remote_code=False,
                )
        except Exception as error:  # noqa: BLE001  # whoever needs it loads it, and says what is wrong
            log.info("fork_server.no_tokenizer", reason=type(error).__name__)
    gc.freeze()


def inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """What a front or a core inherits: nothing of Ray's, whose token opens the cluster."""
    return {name: value for name, value in environment.items() if not name.startswith("RAY_")}


def _is_forked(descriptors: Sequence[int]) -> bool:
    """Fork, and return whether this is the new process.

    Where there can be none, the replica learns it by the end of the connection; what has been
    forked before lives as long as this process, which goes on.
    """
    if len(descriptors) < _DESCRIPTORS:
        log.error("fork_server.not_forked", reason=os.strerror(errno.EMFILE))
        return False
    try:
        return os.fork() == 0
    except OSError as error:
        log.error("fork_server.not_forked", reason=error.strerror)  # noqa: TRY400  # it says all
        return False


def _import_all() -> bool:
    """Whether a core may be forked from here: CUDA works in no fork of a process that uses it."""
    import setproctitle
    import torch
    from vllm.platforms import current_platform

    own = _ON_CARDS if current_platform.is_cuda_alike() else _ON_PROCESSORS
    for name in (*_COMMON, *own, "worker.front"):
        # A core says itself what it lacks.
        with suppress(ImportError):
            import_module(name)
    share_vocabularies()
    # It finds the place of a title by the environment, which a core replaces.
    setproctitle.getproctitle()
    return not (torch.cuda.is_initialized() or _uses_cuda())


def _uses_cuda() -> bool:
    """Whether anything in this process has initialised CUDA's driver; torch knows only of itself.

    Asking neither loads the driver nor initialises it.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD)
    except OSError:
        return False
    count = ctypes.c_int()
    found: int = driver.cuDeviceGetCount(ctypes.byref(count))
    return found != _CUDA_NOT_INITIALIZED


def _end_with(parent: int) -> None:
    """Let the kernel kill this process as soon as its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _started() -> tuple["subprocess.Popen[bytes]", socket.socket]:
    """The process, and what it takes connections from."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-m", "worker.fork_server", str(theirs.fileno())]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env=inherited(os.environ),
        )
    return process, ours


async def _front(replica: socket.socket) -> None:
    from worker.front import Front

    await Front().run(replica)


def _run(kind: Kind, connection: socket.socket) -> None:
    """Be what was asked for, until the process ends."""
    if kind is Kind.FRONT:
        import uvloop

        uvloop.run(_front(connection))
        return
    connection.sendall(os.getpid().to_bytes(4, "little"))
    replica = os.dup(connection.fileno())
    code = 1
    try:
        code = spawn._main(connection.detach(), replica)  # noqa: SLF001  # as multiprocessing's own server does
    finally:
        # Nothing of what the server has registered is to run here.
        os._exit(code)


if __name__ == "__main__":
    if (asked := serve(socket.socket(fileno=int(sys.argv[1])))) is not None:
        _run(*asked)
