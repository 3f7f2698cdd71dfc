"""The command `batchyard` as a user's process against the yard."""

import fcntl
import json
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.contract.conftest import Caller
from tests.eventually import wait_until

_ROOT = Path(__file__).parents[2]
#: On a busy machine, an interpreter alone takes seconds.
_SECONDS = 240


class Ended(NamedTuple):
    """What a command has left."""

    code: int
    out: str
    err: str
    #: Its largest resident memory.
    max_bytes: int = 0

    def records(self) -> list[dict[str, Any]]:
        """The JSON lines on standard output."""
        return [json.loads(line) for line in self.out.splitlines()]


class Command:
    """Runs `batchyard` in a folder, as one tenant."""

    def __init__(self, caller: Caller, folder: Path, module: str = "cli") -> None:
        self._caller = caller
        self._module = module
        self.folder = folder

    def environment(self) -> dict[str, str]:
        """The user's variables."""
        kept = {name: text for name, text in os.environ.items() if "BATCHYARD" not in name}
        return {
            **kept,
            "PYTHONPATH": str(_ROOT),
            "HOME": str(self.folder),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "OPENAI_BASE_URL": f"{self._caller.yard.url}/v1",
            "OPENAI_API_KEY": self._caller.key,
        }

    def file(self, name: str, rows: bytes) -> Path:
        """An input file in the folder."""
        path = self.folder / name
        path.write_bytes(rows)
        return path

    def __call__(self, *arguments: str, **changes: str) -> Ended:
        """Run a command to its end, its outputs in pipes."""
        process = self.start(*arguments, **changes)
        return self.end(process)

    def piped(self, text: str, *arguments: str) -> Ended:
        """Run a command that has this on its standard input."""
        ended = subprocess.run(
            self.line(*arguments),
            env=self.environment(),
            cwd=self.folder,
            input=text,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        return Ended(ended.returncode, ended.stdout, ended.stderr)

    def start(self, *arguments: str, **changes: str) -> "subprocess.Popen[str]":
        """Begin a command."""
        return subprocess.Popen(
            self.line(*arguments),
            env=self.environment() | changes,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self, *arguments: str) -> list[str]:
        """How a shell would call it."""
        return [sys.executable, "-W", "error", "-m", self._module, *arguments]

    def end(self, process: "subprocess.Popen[str]") -> Ended:
        """What the process leaves when it has ended."""
        out, err = process.communicate(timeout=_SECONDS)
        return Ended(process.returncode, out, err)

    def measured(self, *arguments: str) -> Ended:
        """Run a command whose output nobody keeps, and measure its memory."""
        with (self.folder / "err").open("w") as err:
            pid = os.posix_spawn(
                sys.executable,
                self.line(*arguments),
                self.environment(),
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                    (os.POSIX_SPAWN_DUP2, err.fileno(), 2),
                ],
            )
            try:
                _, status, usage = os.wait4(pid, 0)
            except BaseException:
                # The test's time is over.
                os.kill(pid, signal.SIGKILL)
                raise
        text = (self.folder / "err").read_text()
        return Ended(os.waitstatus_to_exitcode(status), "", text, usage.ru_maxrss * 1024)


class Terminal:
    """A command that a person sees on a terminal and types into."""

    def __init__(self, command: Command, arguments: Sequence[str], out: Path | None) -> None:
        self._controller, worker = pty.openpty()
        self._shown = b""
        opened = out.open("wb") if out else None
        self.process = subprocess.Popen(
            command.line(*arguments),
            env=command.environment() | {"TERM": "xterm", "COLUMNS": "200"},
            cwd=command.folder,
            stdin=worker,
            stdout=opened or worker,
            stderr=worker,
            start_new_session=True,
            # Ctrl-C reaches the processes of the terminal that controls them.
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509  # no threads before exec
        )
        os.close(worker)
        os.set_blocking(self._controller, False)
        if opened:
            opened.close()

    def shown(self) -> str:
        """Everything on the terminal so far."""
        while True:
            try:
                chunk = os.read(self._controller, 65_536)
            except OSError:
                # Nothing yet, or nothing any more.
                break
            if not chunk:
                break
            self._shown += chunk
        return self._shown.decode(errors="replace")

    def until(self, text: str) -> None:
        """Wait for a text."""
        wait_until(lambda: text in self.shown())

    def press(self, keys: str) -> None:
        """Type; `\\x03` is Ctrl-C."""
        os.write(self._controller, keys.encode())

    def end(self) -> int:
        """The exit code, once there is one."""
        wait_until(lambda: (self.shown(), self.process.poll() is not None)[1])
        return self.process.wait()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        os.close(self._controller)


@contextmanager
def on_terminal(command: Command, *arguments: str, out: Path | None = None) -> Iterator[Terminal]:
    """A command on a terminal; its standard output may go to a file."""
    terminal = Terminal(command, arguments, out)
    try:
        yield terminal
    finally:
        terminal.close()


def running_batch(caller: Caller, *, done: int = 0) -> dict[str, Any]:
    """The tenant's newest batch, once it runs and has that many results."""
    found: dict[str, Any] = {}

    def is_running() -> bool:
        for batch in caller.http.get("/v1/batches").json()["data"][:1]:
            found.update(batch)
        counts: Mapping[str, int] = found.get("request_counts", {})
        return found.get("status") == "in_progress" and counts["completed"] >= done

    wait_until(is_running)
    caller.made.append(found["id"])
    return found
