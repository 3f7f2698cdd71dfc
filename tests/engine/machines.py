"""One more machine in a test's Ray cluster: here, all processes of one of Ray's nodes."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

#: The resource that only such a machine has.
ANNEX = "annex"


class Machine:
    """A node of Ray."""

    def __init__(self, ray: Any) -> None:
        program = str(Path(sys.executable).parent / "ray")
        address = ray.get_runtime_context().gcs_address
        resources = f'--resources={{"{ANNEX}": 1}}'
        self._node = subprocess.Popen(
            [program, "start", f"--address={address}", "--num-cpus=4", resources, "--block"],
            env=os.environ | {"RAY_AUTH_MODE": "token"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def die(self) -> None:
        """At once, with all that runs on it."""
        for process in self._processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._node.wait()

    def give_notice(self) -> None:
        """Tell it as a cloud does, 30 seconds before it takes a machine away."""
        self._node.send_signal(signal.SIGTERM)

    def end(self, seconds: float) -> None:
        """Wait so long for it to end by itself, and then end it."""
        with suppress(subprocess.TimeoutExpired):
            self._node.wait(seconds)
        self.die()

    def _processes(self) -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            machine = psutil.Process(self._node.pid)
            return [machine, *machine.children(recursive=True)]
        return []


@contextmanager
def a_machine(ray: Any) -> Iterator[Machine]:
    """A machine that is dead at the end."""
    machine = Machine(ray)
    try:
        yield machine
    finally:
        machine.die()
