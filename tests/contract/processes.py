"""The gateway and the dispatcher as processes: to freeze, to kill and to start again."""

import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from cli.servers.http import is_well
from tests.eventually import wait_until

_ROOT = Path(__file__).parents[2]


class Process:
    """`python -m <room>`; its log is kept for failures."""

    def __init__(self, room: str, environment: Mapping[str, str], folder: Path) -> None:
        self._room = room
        self._environment = dict(environment)
        self.folder = folder
        self._log = folder / f"{room}.log"
        self._child: subprocess.Popen[bytes] | None = None
        self._starts = 0

    @property
    def child(self) -> "subprocess.Popen[bytes]":
        """The process that runs, or ran last."""
        assert self._child is not None
        return self._child

    def start(self) -> None:
        """Begin; whether it is up is asked apart, so that several begin together."""
        with self._log.open("ab") as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", self._room],
                env=self._environment,
                cwd=_ROOT,
                stdout=log,
                stderr=log,
            )
        self._starts += 1

    def restart(self, **changes: str) -> None:
        """Stop, and begin again with these variables changed."""
        self.stop()
        self._environment |= changes
        self.start()

    def wait(self) -> None:
        """Return once it serves."""
        wait_until(self._is_up)

    def kill(self) -> None:
        """Kill it, which no process can prepare for."""
        self.child.kill()
        self.child.wait()

    def freeze(self) -> None:
        self.child.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.child.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Stop it gracefully, and kill it if that fails."""
        if self._child is None or self._child.poll() is not None:
            return
        self.thaw()
        self._child.terminate()
        try:
            self._child.wait(15)
        except subprocess.TimeoutExpired:
            self.kill()

    def log(self) -> str:
        return self._log.read_text()

    def _is_up(self) -> bool:
        assert self.child.poll() is None, self.log()
        if self._room == "dispatcher":
            return self.log().count('"dispatcher.leads"') >= self._starts
        port = self._environment["BATCHYARD_PORT"]
        return is_well(f"http://127.0.0.1:{port}/readyz")
