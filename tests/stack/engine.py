"""A container engine for the tests: the one that runs, or Debian's own, started for them alone."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.eventually import wait_until

#: The engine itself is what docker-compose recommends.
_PACKAGES = ("docker-compose", "mmdebstrap")


class NoEngineError(Exception):
    """None runs, and none can be had; the text says why."""


class Engine:
    """`docker` against one daemon."""

    def __init__(self, host: str | None) -> None:
        self._environment = {
            **os.environ,
            "DOCKER_BUILDKIT": "1",
            **({"DOCKER_HOST": host} if host else {}),
        }

    def run(self, *arguments: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """`docker …`; raises AssertionError with its words."""
        done = subprocess.run(
            ["docker", *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"docker {' '.join(arguments)}: {done.stderr[-3000:]}")
        return done

    def answers(self) -> bool:
        return self.run("version", check=False).returncode == 0

    def has_image(self, name: str) -> bool:
        return self.run("image", "inspect", name, check=False).returncode == 0

    def import_image(self, archive: Path, name: str) -> None:
        """An image of one layer, from a tar of a root."""
        self.run("import", str(archive), name)


@contextmanager
def some_engine(folder: Path) -> Iterator[Engine]:
    """The engine that answers, else one that lives as long as this and keeps all in `folder`.

    Raises NoEngineError.
    """
    if shutil.which("docker") and (running := Engine(None)).answers():
        yield running
        return
    if os.geteuid() != 0:
        raise NoEngineError("no container engine answers, and starting one takes root")
    _install()
    folder.mkdir(parents=True, exist_ok=True)
    socket = folder / "docker.sock"
    with (folder / "log").open("wb") as log:
        daemon = subprocess.Popen(
            [
                "dockerd",
                f"--data-root={folder / 'data'}",
                f"--exec-root={folder / 'exec'}",
                f"--pidfile={folder / 'pid'}",
                f"--host=unix://{socket}",
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    engine = Engine(f"unix://{socket}")
    try:
        wait_until(lambda: daemon.poll() is not None or engine.answers(), timeout=60)
        if daemon.poll() is not None:
            raise NoEngineError((folder / "log").read_text()[-1000:])
        yield engine
    finally:
        daemon.terminate()
        daemon.wait(60)


def _install() -> None:
    if shutil.which("dockerd") and shutil.which("mmdebstrap"):
        return
    for command in (["update"], ["install", "-y", "--install-recommends", *_PACKAGES]):
        done = subprocess.run(
            ["apt-get", "-qq", *command],
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise NoEngineError(f"apt-get {command[0]}: {done.stderr[-1000:]}")
