"""A container engine for the tests: the one that runs, or Debian's own, started for them alone.

What our own engine has built and made stays in a folder for the next run: `TEST_STACK_CACHE`, else
one in the user's cache.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from cli.servers import install
from shared.errors import SetupError
from tests.eventually import wait_until

_PACKAGES = {"dockerd": "docker.io", "docker-compose": "docker-compose", "mmdebstrap": "mmdebstrap"}
#: Debian's client goes with Debian's daemon; a newer one in front of it cannot build with it.
_CLIENTS = ("/usr/bin/docker", "docker")
_CACHE = "~/.cache/batchyard-stack"


class NoEngineError(Exception):
    """None runs, and none can be had; the text says why."""


class ContainerEngine:
    """`docker` and `docker compose` against one daemon."""

    def __init__(self, client: str, host: str | None, folder: Path) -> None:
        self.client = client
        self._environment = {
            **os.environ,
            "DOCKER_BUILDKIT": "1",
            **({"DOCKER_HOST": host} if host else {}),
        }
        self.host = host
        #: Where the tests may keep what takes long to make.
        self.folder = folder

    @property
    def is_ours(self) -> bool:
        """Whether nobody else uses it: stand-ins may have the names of real images there."""
        return self.host is not None

    @property
    def compose(self) -> list[str]:
        """The command of Compose: the client's plugin, or Debian's program."""
        if self.run("compose", "version", check=False).returncode == 0:
            return [self.client, "compose"]
        return ["docker-compose"]

    def run(self, *arguments: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """`docker …`; raises AssertionError with its words."""
        done = subprocess.run(
            [self.client, *arguments],
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode:
            raise AssertionError(f"docker {' '.join(arguments)}: {done.stderr[-3000:]}")
        return done

    def ask(self, *arguments: str) -> str:
        """The words of `docker …` on its output."""
        return self.run(*arguments).stdout.strip()

    def answers(self) -> bool:
        return self.run("version", check=False).returncode == 0

    def has_image(self, name: str) -> bool:
        return self.run("image", "inspect", name, check=False).returncode == 0

    def pull(self, name: str) -> bool:
        """Whether the image could be had under its own name."""
        return self.run("pull", "--quiet", name, check=False).returncode == 0

    def image_bytes(self, name: str) -> int:
        return int(self.ask("image", "inspect", "--format={{.Size}}", name))

    def import_image(self, archive: Path, name: str) -> None:
        """An image of one layer, from a tar of a root."""
        self.run("import", str(archive), name)

    def build(self, tag: str, context: Path, *options: str) -> None:
        """By the machine's own network: where it has a package index, the build has it as well."""
        began = time.monotonic()
        self.run("build", "--network=host", f"--tag={tag}", *options, str(context))
        show(f"built {tag} in {time.monotonic() - began:.0f} s")


@contextmanager
def some_engine() -> Iterator[ContainerEngine]:
    """The engine that answers, else one that lives as long as this. Raises NoEngineError."""
    folder = Path(os.environ.get("TEST_STACK_CACHE") or _CACHE).expanduser().resolve()
    for client in _CLIENTS:
        if shutil.which(client) and (running := ContainerEngine(client, None, folder)).answers():
            yield running
            return
    if os.geteuid() != 0:
        raise NoEngineError("no container engine answers, and starting one takes root")
    _install()
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NoEngineError(f"another run uses {folder}") from None
        with _daemon(folder) as engine:
            yield engine


@contextmanager
def _daemon(folder: Path) -> Iterator[ContainerEngine]:
    socket = folder / "docker.sock"
    command: Sequence[str | Path] = (
        "dockerd",
        f"--data-root={folder / 'data'}",
        f"--exec-root={folder / 'exec'}",
        f"--pidfile={folder / 'pid'}",
        f"--host=unix://{socket}",
    )
    _end_left_over(folder / "pid")
    with (folder / "log").open("wb") as log:
        daemon = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    engine = ContainerEngine(_CLIENTS[0], f"unix://{socket}", folder)
    try:
        wait_until(lambda: daemon.poll() is not None or engine.answers())
        if daemon.poll() is not None:
            raise NoEngineError((folder / "log").read_text()[-1000:])
        _remove_left_over(engine)
        yield engine
    finally:
        daemon.terminate()
        daemon.wait(60)


def _end_left_over(pid_file: Path) -> None:
    """End the daemon of a run that was killed; it would hold the folder."""
    if not pid_file.exists():
        return
    pid = int(pid_file.read_text())
    with suppress(psutil.NoSuchProcess):
        daemon = psutil.Process(pid)
        if daemon.name() == "dockerd" and str(pid_file.parent) in " ".join(daemon.cmdline()):
            daemon.terminate()
            daemon.wait(60)
    pid_file.unlink(missing_ok=True)


def _remove_left_over(engine: ContainerEngine) -> None:
    """Remove the containers of a run that was killed; they start again with the daemon."""
    for what, options in (("container", ["-a"]), ("volume", [])):
        if left := engine.ask(what, "ls", "-q", *options).split():
            engine.run(what, "rm", "--force", *left)
    engine.run("network", "prune", "--force")


def show(text: str) -> None:
    """Say it at once, whatever pytest does with the output of tests."""
    print(f"stack      {text}", file=sys.__stderr__, flush=True)


def _install() -> None:
    missing = [package for program, package in _PACKAGES.items() if not shutil.which(program)]
    try:
        install(missing, report=show)
    except SetupError as error:
        raise NoEngineError(str(error)) from error
