"""A private RabbitMQ on loopback, with its own epmd; it loads users and topology at boot."""

import json
import secrets
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cli.servers.ports import Ports
from cli.servers.process import (
    Child,
    foreign_environment,
    make_private_directory,
    wait_ready,
    write_private_file,
)
from shared.bus.topology import MAX_MESSAGE_BYTES, VIRTUAL_HOST, User, definitions
from shared.errors import SetupError

_PORTS = ("rabbitmq", "rabbitmq-distribution", "rabbitmq-epmd")
_NODE = "batchyard@localhost"
# Schedulers sleep instead of spinning.
_ERLANG_ARGUMENTS = "+S 2:2 +sbwt none +sbwtdcpu none +sbwtdio none"
# For each Erlang, such as those that a broker starts to have an epmd: such an epmd leaves its
# session, outlives the broker, and keeps the port from the next run.
_ALL_ERLANG_ARGUMENTS = "-kernel inet_dist_use_interface {127,0,0,1} -start_epmd false"
_CONFIGURATION = """\
listeners.tcp.1 = 127.0.0.1:{port}
load_definitions = {definitions}
vm_memory_high_watermark.absolute = 1GB
max_message_size = {max_message_bytes}
disk_free_limit.absolute = 200MB
# Without ANONYMOUS, which RabbitMQ offers since version 4.
auth_mechanisms.1 = PLAIN
auth_mechanisms.2 = AMQPLAIN
"""
_MANAGEMENT = """\
management.tcp.ip = 127.0.0.1
management.tcp.port = {port}
"""
# A protocol version that no broker speaks: a running broker answers with its own, and closes.
_GREETING = b"AMQP\x00\x00\x09\x02"


class RabbitMQ:
    """One broker with its data in `<run_dir>/rabbitmq`, and with exactly these users.

    `holds` replaces our definitions.
    """

    def __init__(
        self,
        run_dir: Path,
        users: Sequence[User],
        *,
        holds: Mapping[str, Any] | None = None,
        with_management: bool = False,
    ) -> None:
        self._definitions = holds or definitions(users)
        self._with_management = with_management
        self._directory = (run_dir / "rabbitmq").resolve()
        self._run_dir = run_dir
        self._ports = Ports(run_dir)
        self._broker: Child | None = None
        self._epmd: Child | None = None

    def url(self, user: User) -> str:
        """The address for one user, with the password in it."""
        login = f"{quote(user.name, safe='')}:{quote(user.password, safe='')}"
        port = self._ports.get("rabbitmq")
        return f"amqp://{login}@127.0.0.1:{port}/{quote(VIRTUAL_HOST, safe='')}"

    @property
    def management_port(self) -> int:
        """The port of its HTTP API, `with_management`."""
        return self._ports.get("rabbitmq-management")

    @property
    def child(self) -> Child:
        """The broker's process, once it was launched."""
        if self._broker is None:
            raise SetupError("RabbitMQ has not been launched.")
        return self._broker

    def start(self, timeout_seconds: float = 180.0) -> None:
        """Start and wait until clients are served; a busy machine may need a minute."""
        self.launch()
        self.wait(timeout_seconds)

    def launch(self) -> None:
        """Start without waiting. Main thread only (see `Child.start`)."""
        programs = rabbitmq_programs()
        if programs is None:
            raise SetupError("There is no RabbitMQ on this machine: install rabbitmq-server.")
        if self._broker is None or self._epmd is None:
            environment = self._environment()
            port = str(self._ports.get("rabbitmq-epmd"))
            self._epmd = Child(
                "rabbitmq-epmd",
                ["epmd", "-port", port, "-address", "127.0.0.1"],
                self._run_dir,
                environment=environment,
            )
            self._broker = Child(
                "rabbitmq",
                [str(programs / "rabbitmq-server")],
                self._run_dir,
                environment=environment,
            )
        for child in (self._broker, self._epmd):
            child.end_stale()
        if not self._broker.is_alive() and not self._epmd.is_alive():
            self._ports.require_free(*_PORTS)
        self._write_files()
        if not self._epmd.is_alive():
            self._epmd.start()
            wait_ready(self._epmd_listens, [self._epmd], timeout_seconds=10)
        self._broker.start()

    def wait(self, timeout_seconds: float = 180.0) -> None:
        """Wait until clients are served; users and topology are loaded by then."""
        wait_ready(self._greets, [self.child], timeout_seconds=timeout_seconds)

    def stop(self, grace_seconds: float = 60.0) -> None:
        """Stop it in order; confirmed messages are on disk in any case."""
        for child in (self._broker, self._epmd):
            if child is not None:
                child.stop(grace_seconds)

    def kill(self) -> None:
        """End it as a crash would."""
        for child in (self._broker, self._epmd):
            if child is not None:
                child.kill()

    def ctl(self, *arguments: str, standard_input: str = "") -> str:
        """What `rabbitmqctl` prints; takes seconds. `add_user` reads a password as its input."""
        programs = rabbitmq_programs()
        if programs is None:
            raise SetupError("There is no RabbitMQ on this machine: install rabbitmq-server.")
        result = subprocess.run(
            [str(programs / "rabbitmqctl"), "--quiet", *arguments],
            input=standard_input,
            env=self._environment(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        if result.returncode:
            raise SetupError(f"rabbitmqctl {arguments[0]}: {result.stderr or result.stdout}")
        return result.stdout

    def import_definitions(self, added: dict[str, Any]) -> None:
        """Add definitions to the running broker; takes seconds."""
        with tempfile.NamedTemporaryFile("w", dir=self._directory, suffix=".json") as file:
            json.dump(added, file)
            file.flush()
            self.ctl("import_definitions", file.name)

    def _environment(self) -> dict[str, str]:
        """An environment without /etc/rabbitmq and without the caller's own RabbitMQ settings."""
        own = self._directory
        foreign = ("RABBITMQ_", "ERL_", "ERLANG_")
        inherited = {
            name: value
            for name, value in foreign_environment().items()
            if not name.startswith(foreign)
        }
        return inherited | {
            "HOME": str(own),
            # A crash dump contains passwords, so it is written to the private folder.
            "ERL_CRASH_DUMP": str(own / "erl_crash.dump"),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self._ports.get("rabbitmq-epmd")),
            "ERL_ZFLAGS": _ALL_ERLANG_ARGUMENTS,
            "RABBITMQ_NODENAME": _NODE,
            "RABBITMQ_DIST_PORT": str(self._ports.get("rabbitmq-distribution")),
            "RABBITMQ_NODE_PORT": str(self._ports.get("rabbitmq")),
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_CONF_ENV_FILE": str(own / "env.conf"),
            "RABBITMQ_CONFIG_FILE": str(own / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(own / "advanced.config"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(own / "generated"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(own / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(own / "data"),
            "RABBITMQ_LOG_BASE": str(own / "log"),
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_PID_FILE": str(own / "node.pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": _ERLANG_ARGUMENTS,
            # With this, the start script becomes the Erlang process instead of waiting for it: one
            # process, which dies with us and shuts down in order on SIGTERM.
            "RUNNING_UNDER_SYSTEMD": "true",
        }

    def _write_files(self) -> None:
        own = self._directory
        make_private_directory(own)
        cookie = own / ".erlang.cookie"
        if not cookie.exists():
            write_private_file(cookie, secrets.token_hex(16))
            cookie.chmod(0o400)
        write_private_file(own / "definitions.json", json.dumps(self._definitions, indent=2))
        (own / "env.conf").write_text("")
        plugins = "rabbitmq_management" if self._with_management else ""
        (own / "enabled_plugins").write_text(f"[{plugins}].\n")
        configuration = _CONFIGURATION.format(
            port=self._ports.get("rabbitmq"),
            definitions=own / "definitions.json",
            max_message_bytes=MAX_MESSAGE_BYTES,
        )
        if self._with_management:
            configuration += _MANAGEMENT.format(port=self.management_port)
        (own / "rabbitmq.conf").write_text(configuration)

    def _epmd_listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._ports.get("rabbitmq-epmd")), 1.0).close()
        except OSError:
            return False
        return True

    def _greets(self) -> bool:
        try:
            with socket.create_connection(
                ("127.0.0.1", self._ports.get("rabbitmq")), 1.0
            ) as connection:
                connection.sendall(_GREETING)
                connection.settimeout(2.0)
                return connection.recv(4) == b"AMQP"
        except OSError:
            return False


def rabbitmq_programs() -> Path | None:
    """The folder of RabbitMQ's own scripts; None if it is not installed.

    Not the scripts on the PATH: Debian's wrappers insist on root or the user rabbitmq.
    """
    places = [
        *sorted(Path("/usr/lib/rabbitmq/lib").glob("rabbitmq_server-*/sbin"), reverse=True),
        Path("/opt/rabbitmq/sbin"),
    ]
    return next((place for place in places if (place / "rabbitmq-server").exists()), None)
