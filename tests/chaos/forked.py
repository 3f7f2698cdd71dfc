"""Gateways and dispatchers as forks of a process that has imported them: back at once when killed.

A run is about their deaths, not about the seconds of their imports.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Literal

from cli.servers.process import RUN_DIR_VARIABLE

Room = Literal["gateway", "dispatcher"]

_PR_SET_PDEATHSIG = 1
_KILL_SECONDS = 60.0
#: The clients' part is there because it is what the harness's own main module imports.
_IMPORTED = ["gateway.__main__", "dispatcher.__main__", "tests.chaos.run"]


def forks() -> ForkServerContext:
    """What `Forked` needs; its process imports meanwhile."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_IMPORTED)
    return context


class Forked:
    """A `cli.servers.Child` for one room, as far as a run needs one."""

    def __init__(
        self,
        context: ForkServerContext,
        name: str,
        room: Room,
        run_dir: Path,
        environment: Mapping[str, str],
    ) -> None:
        self.log_file = run_dir / f"{name}.log"
        self._context = context
        self._name = name
        self._room: Room = room
        self._run_dir = run_dir
        self._environment = {**environment, RUN_DIR_VARIABLE: str(run_dir.resolve())}
        self._process: BaseProcess | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Negative for a signal; None while it runs."""
        return None if self._process is None else self._process.exitcode

    def start(self) -> None:
        """Return before it serves."""
        self.log_file.touch()
        self._process = self._context.Process(
            target=_be,
            args=(self._room, str(self.log_file), self._environment),
            name=self._name,
            # They end with the run.
            daemon=True,
        )
        self._process.start()

    def with_environment(self, environment: Mapping[str, str]) -> "Forked":
        """The same, not started, with these variables besides or instead."""
        changed = {**self._environment, **environment}
        return Forked(self._context, self._name, self._room, self._run_dir, changed)

    def is_alive(self) -> bool:
        return self._process is not None and self._process.is_alive()

    def kill(self) -> None:
        """End it at once, and return when it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.join(_KILL_SECONDS)


def _be(room: Room, log: str, environment: Mapping[str, str]) -> None:
    """In the fork: what `python -m ROOM` does, in this environment and with this log."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    os.setsid()
    with Path(log).open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ.clear()
    os.environ.update(environment)
    # The harness ignores interrupts; our processes handle them as usual.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if room == "gateway":
        from gateway.__main__ import main
    else:
        from dispatcher.__main__ import main
    sys.exit(main())
