"""Three RabbitMQ nodes on this machine, and the balancer through which clients reach them."""

import json
import secrets
from collections.abc import Sequence
from pathlib import Path

from cli import servers
from cli.servers.process import make_private_directory, wait_ready, write_private_file
from shared.bus.topology import User, definitions
from tests.eventually import wait_until
from tests.switch import Switch

NODES = 3
_FORMATION = """\
cluster_partition_handling = pause_minority
cluster_formation.peer_discovery_backend = classic_config
"""


class _Node(servers.RabbitMQ):
    """One of the nodes. All ask the first one's epmd who is where."""

    def __init__(self, number: int, folder: Path, first: "_Node | None", cookie: str) -> None:
        # Loaded by the first node alone, queues would live on it alone.
        super().__init__(folder, [], holds={"users": []})
        self._number = number
        self._first = first or self
        own = folder / "rabbitmq"
        make_private_directory(folder)
        make_private_directory(own)
        write_private_file(own / ".erlang.cookie", cookie)
        (own / ".erlang.cookie").chmod(0o400)

    @property
    def port(self) -> int:
        return self._ports.get("rabbitmq")

    @property
    def greets(self) -> bool:
        """Whether it takes clients: a node that has paused does not."""
        return self._greets()

    def _environment(self) -> dict[str, str]:
        epmd = self._first._ports.get("rabbitmq-epmd")  # noqa: SLF001  # of the same class
        return super()._environment() | {
            "RABBITMQ_NODENAME": _name(self._number),
            "ERL_EPMD_PORT": str(epmd),
        }

    def _write_files(self) -> None:
        super()._write_files()
        configuration = self._directory / "rabbitmq.conf"
        nodes = "".join(
            f"cluster_formation.classic_config.nodes.{number + 1} = {_name(number)}\n"
            for number in range(NODES)
        )
        configuration.write_text(configuration.read_text() + _FORMATION + nodes)


class Cluster:
    """Takes the place of `servers.RabbitMQ` for the processes of a test."""

    def __init__(self, folder: Path, users: Sequence[User]) -> None:
        cookie = secrets.token_hex(16)
        self.nodes: list[_Node] = []
        for number in range(NODES):
            first = self.nodes[0] if self.nodes else None
            self.nodes.append(_Node(number, folder / f"node-{number}", first, cookie))
        self._users = users
        self._balancer = Switch([node.port for node in self.nodes])

    @property
    def child(self) -> servers.Child:
        return self.nodes[0].child

    def url(self, user: User) -> str:
        """Through the balancer."""
        url = self.nodes[0].url(user)
        return url.replace(f":{self.nodes[0].port}/", f":{self._balancer.port}/")

    def start(self) -> None:
        """Return once all nodes are one cluster, and hold the topology."""
        for node in self.nodes:
            # One after the other: the first makes the cluster that the others join.
            node.start(300)
        wait_until(lambda: self.members == NODES, 120)
        self.nodes[0].import_definitions(definitions(self._users))

    @property
    def members(self) -> int:
        """How many nodes the first one that answers sees at work."""
        for node in self.nodes:
            if node.greets:
                status = json.loads(node.ctl("cluster_status", "--formatter", "json"))
                return len(status["running_nodes"])
        return 0

    def lose(self, number: int) -> None:
        """Kill a node, as the loss of its machine would."""
        self.nodes[number].child.kill()

    def bring_back(self, number: int) -> None:
        """Start it again, without waiting."""
        self.nodes[number].launch()

    def wait(self) -> None:
        """Until all nodes serve."""
        for node in self.nodes:
            wait_ready(lambda node=node: node.greets, [node.child], timeout_seconds=300)  # type: ignore[misc]  # bound now

    def stop(self) -> None:
        self._balancer.close()
        for node in self.nodes:
            node.kill()


def _name(number: int) -> str:
    return f"batchyard{number}@localhost"
