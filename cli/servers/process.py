"""One child process: it dies with its parent, and a later run recognises it by its mark.

Linux only: PR_SET_PDEATHSIG ties it to the parent, and the mark is read from /proc.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from shared.errors import SetupError

#: The mark: every child carries its run directory under this name in its environment.
RUN_DIR_VARIABLE = "BATCHYARD_RUN_DIR"

#: Of a log and as much of its older part, what stays on disk.
MAX_LOG_BYTES = 64 * 1024**2

_POLL_SECONDS = 0.01
# A process in an uninterruptible disk wait needs a while to die, even of SIGKILL.
_KILL_SECONDS = 10.0
_BOUND_TO_PARENT = (sys.executable, "-I", "-S", str(Path(__file__).with_name("bound_to_parent.py")))


class Child:
    """A program in its own session, with `<name>.pid` and `<name>.log` in the run directory."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        run_dir: Path,
        *,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.log_file = run_dir / f"{name}.log"
        self._command = list(command)
        self._run_dir = run_dir
        self._environment = dict(foreign_environment() if environment is None else environment)
        self._environment[RUN_DIR_VARIABLE] = str(run_dir.resolve())
        self._pid_file = run_dir / f"{name}.pid"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process id, even after its end; None before the first start."""
        return None if self._process is None else self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None while it runs or before the first start."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Start the program, after killing what an earlier run of this directory left behind.

        Main thread only: the kernel sends the death signal when the *thread* that forked ends, so
        a child that a pool's thread started would die with that thread.
        """
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError(f"{self.name} must be started from the main thread.")
        if self.is_alive():
            raise SetupError(f"{self.name} is already running as process {self.pid}.")
        if shutil.which(self._command[0], path=self._environment.get("PATH")) is None:
            raise SetupError(
                f"{self.name} cannot start: there is no {self._command[0]} on this machine."
            )
        make_private_directory(self._run_dir)
        self.end_stale()
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [*_BOUND_TO_PARENT, str(os.getpid()), *self._command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )
        self._pid_file.write_text(f"{self._process.pid}\n")

    def with_environment(self, environment: Mapping[str, str]) -> "Child":
        """The same program, not started, with these variables added or replaced."""
        return Child(
            self.name,
            self._command,
            self._run_dir,
            environment={**self._environment, **environment},
        )

    def is_alive(self) -> bool:
        """Whether the program itself runs; its own children do not count."""
        return self._process is not None and self._process.poll() is None

    def stop(self, grace_seconds: float = 30.0) -> None:
        """Ask the process group to end, and kill what is left after the grace period."""
        self.ask_to_end()
        self.end(grace_seconds)

    def ask_to_end(self) -> None:
        """Ask the process group to end, and do not wait for it."""
        if self._process is not None and self.is_alive():
            os.killpg(self._process.pid, signal.SIGTERM)

    def end(self, grace_seconds: float) -> None:
        """Wait for a program that was asked to end; kill what is left after the grace period."""
        if self._process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_seconds)
        self.kill()

    def kill(self) -> None:
        """Kill the process group, and return when it is gone."""
        if self._process is None:
            return
        # The process id is certainly ours only until the leader is reaped.
        if self.is_alive():
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(_KILL_SECONDS)
        _kill_session(self._process.pid, self._mark)
        self._pid_file.unlink(missing_ok=True)

    def end_stale(self) -> None:
        """Kill what an earlier run of this directory left; other processes are never touched.

        What counts is the mark in a process's environment, not the number in the pid file.
        """
        if self.is_alive():
            return
        try:
            pid = int(self._pid_file.read_text())
        except (FileNotFoundError, ValueError):
            return
        _kill_session(pid, self._mark)
        self._pid_file.unlink(missing_ok=True)

    def bound_log(self, max_bytes: int = MAX_LOG_BYTES) -> None:
        """Move a log that has grown too large to `<name>.log.1`, in place of an older one.

        The program goes on writing to the same file, at its new end.
        """
        if not self.log_file.exists() or self.log_file.stat().st_size <= max_bytes:
            return
        shutil.copyfile(self.log_file, old := self.log_file.with_suffix(".log.1"))
        old.chmod(0o600)
        # What was written since the copy is lost.
        os.truncate(self.log_file, 0)

    def tail_of_log(self, lines: int = 20) -> str:
        """The last lines of what the program printed, this run and earlier ones."""
        try:
            with self.log_file.open(errors="replace") as log:
                return "".join(deque((line for line in log if line.strip()), lines)).rstrip()
        except FileNotFoundError:
            return ""

    @property
    def _mark(self) -> bytes:
        return f"{RUN_DIR_VARIABLE}={self._environment[RUN_DIR_VARIABLE]}".encode()


def foreign_environment() -> dict[str, str]:
    """Our own environment without Batchyard's settings, which hold logins: for others' programs."""
    return {name: text for name, text in os.environ.items() if not name.startswith("BATCHYARD_")}


def wait_ready(
    ready: Callable[[], bool], children: Sequence[Child], *, timeout_seconds: float
) -> None:
    """Poll `ready`; raise `SetupError` with the end of the log if a child ends or time is up."""
    deadline = time.monotonic() + timeout_seconds
    while not ready():
        for child in children:
            if not child.is_alive():
                raise SetupError(
                    f"{child.name} ended with exit code {child.exit_code} before it was ready. "
                    f"The end of {child.log_file}:\n{child.tail_of_log()}"
                )
        if time.monotonic() > deadline:
            last = children[-1]
            raise SetupError(
                f"{last.name} was not ready after {timeout_seconds:g} s. "
                f"The end of {last.log_file}:\n{last.tail_of_log()}"
            )
        time.sleep(_POLL_SECONDS)


@contextlib.contextmanager
def sole_user_of(run_dir: Path) -> Iterator[None]:
    """Lock the run directory: two runs would take each other's servers for leftovers."""
    make_private_directory(run_dir)
    with (run_dir / "lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            lock.seek(0)
            raise SetupError(
                f"Process {lock.read().strip() or 'unknown'} already runs in {run_dir}. "
                "Stop it first, or choose another run directory."
            ) from error
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def all_in_turn(steps: Iterable[Callable[[], object]]) -> None:
    """Take every step, in order, also after one has failed; raises what failed last."""
    with contextlib.ExitStack() as stack:
        # A stack is left from its end.
        for step in reversed(list(steps)):
            stack.callback(step)


def stop_together(children: Iterable[Child], grace_seconds: float) -> None:
    """Stop children that do not need each other: all of them have the same grace period."""
    ending = list(children)
    for child in ending:
        child.ask_to_end()
    deadline = time.monotonic() + grace_seconds
    all_in_turn(partial(_end_before, child, deadline) for child in ending)


def _end_before(child: Child, deadline: float) -> None:
    child.end(max(0.0, deadline - time.monotonic()))


def make_private_directory(path: Path) -> None:
    """Create a directory for keys, passwords and logs that only its owner may enter."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def write_private_file(path: Path, text: str) -> None:
    """Write a new file that only its owner may read, in place of an old one."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)


def _kill_session(session: int, mark: bytes) -> None:
    """Kill the marked processes of a session until there are none.

    The leader's children count too: a broker may outlive the script that started it.
    """
    deadline = time.monotonic() + _KILL_SECONDS
    while pids := _marked_members(session, mark):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise SetupError(f"These processes do not end when killed: {pids}. End them by hand.")
        time.sleep(_POLL_SECONDS)


def _marked_members(session: int, mark: bytes) -> list[int]:
    pids = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        # Processes start and end during the scan, and other users' environments cannot be read.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            # The name in brackets may hold spaces, so fields are counted from the last bracket.
            state, _, _, owner = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(owner) != session or state in "ZX":
                continue
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                pids.append(int(entry.name))
    return pids
