"""A private Redis with passwords, which answers a write when it is on disk."""

import os
import socket
from pathlib import Path
from urllib.parse import quote

from cli.servers.ports import Ports
from cli.servers.process import (
    Child,
    make_private_directory,
    wait_ready,
    write_private_file,
)
from shared.errors import SetupError

_CONFIGURATION = """\
bind 127.0.0.1
port {port}
dir "{directory}"
daemonize no
requirepass "{password}"
appendonly yes
# Batches are acknowledged once they are in Redis: every write is on disk before its answer.
appendfsync always
aof-use-rdb-preamble yes
aof-load-truncated yes
auto-aof-rewrite-min-size 64mb
save ""
stop-writes-on-bgsave-error yes
# At this limit it refuses writes; without one it would fill the machine.
maxmemory {max_memory_bytes}
maxmemory-policy noeviction
# A process title overwrites the environment, which has the mark of leftovers.
set-proc-title no
"""
#: Its share of the machine's memory is a quarter, and at least this.
_MIN_MEMORY_BYTES = 1024**3


class Redis:
    """One Redis server with its data in `<run_dir>/redis`.

    With `lane_password`, it has a user for lane jobs beside the one who may do everything.
    """

    def __init__(self, run_dir: Path, password: str, lane_password: str | None = None) -> None:
        for one in (password, *([] if lane_password is None else [lane_password])):
            _require_usable(one)
        self._directory = run_dir / "redis"
        self._configuration = self._directory / "redis.conf"
        self._password = password
        self._lane_password = lane_password
        self._ports = Ports(run_dir)
        self._child = Child("redis", ["redis-server", str(self._configuration)], run_dir)

    @property
    def url(self) -> str:
        """The address with the password in it, database 0."""
        return f"redis://:{quote(self._password, safe='')}@127.0.0.1:{self._port}/0"

    @property
    def lane_url(self) -> str:
        """The address with the login of lane jobs in it."""
        from shared.state.access import LANE_USER  # as in `launch`

        login = f"{LANE_USER}:{quote(self._lane_password or '', safe='')}"
        return f"redis://{login}@127.0.0.1:{self._port}/0"

    @property
    def child(self) -> Child:
        """The server's process."""
        return self._child

    def start(self, timeout_seconds: float = 30.0) -> None:
        """Start and wait until commands are answered."""
        self.launch()
        self.wait(timeout_seconds)

    def launch(self) -> None:
        """Start without waiting. Main thread only (see `Child.start`)."""
        self._child.end_stale()
        if not self._child.is_alive():
            self._ports.require_free("redis")
        make_private_directory(self._directory)
        configuration = _CONFIGURATION.format(
            port=self._port,
            directory=self._directory.resolve(),
            password=self._password,
            max_memory_bytes=max(_MIN_MEMORY_BYTES, _machine_bytes() // 4),
        )
        if self._lane_password is not None:
            # Not at the top: the servers also start where nothing is installed.
            from shared.state.access import LANE_USER, lane_rules
            from shared.state.state import NAMESPACE

            rules = lane_rules(NAMESPACE)
            configuration += f'user {LANE_USER} on ">{self._lane_password}" {rules}\n'
        write_private_file(self._configuration, configuration)
        self._child.start()

    def wait(self, timeout_seconds: float = 30.0) -> None:
        """Wait until commands are answered; after a kill Redis reads its log back first."""
        wait_ready(self._answers, [self._child], timeout_seconds=timeout_seconds)

    def stop(self, grace_seconds: float = 30.0) -> None:
        """Stop it in order."""
        self._child.stop(grace_seconds)

    def kill(self) -> None:
        """Kill it, as a crash would."""
        self._child.kill()

    @property
    def _port(self) -> int:
        return self._ports.get("redis")

    def _answers(self) -> bool:
        password = self._password.encode()
        try:
            with socket.create_connection(("127.0.0.1", self._port), 1.0) as connection:
                connection.sendall(
                    b"*2\r\n$4\r\nAUTH\r\n$%d\r\n%s\r\nPING\r\n" % (len(password), password)
                )
                # Two lines, which may arrive separately; the second is -LOADING while data is read.
                with connection.makefile("rb") as answers:
                    return [answers.readline(), answers.readline()] == [b"+OK\r\n", b"+PONG\r\n"]
        except OSError:
            return False


def _machine_bytes() -> int:
    # Without psutil: this also runs in the image of a server, where nothing is installed.
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _require_usable(password: str) -> None:
    if not password or any(
        character in '"\\' or not character.isprintable() for character in password
    ):
        raise SetupError(
            "Redis's password must not be empty, nor contain quotes, backslashes or control "
            "characters."
        )
