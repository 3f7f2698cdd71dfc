"""The port of each private server: chosen once and kept for later starts."""

import atexit
import functools
import itertools
import json
import random
import socket
from collections.abc import Iterator
from pathlib import Path

from cli.servers.process import make_private_directory
from shared.errors import SetupError

#: Above the ports that another Ray cluster gives to its workers.
_LOWEST = 20_000
#: Each process picks from its own share if one is left, so that no other process takes a port
#: between its choice and the start of its server.
_SHARES = 16
#: The socket whose name claims the share; the kernel frees it when the process ends.
_claim = socket.socket(socket.AF_UNIX)
atexit.register(_claim.close)


def free_port() -> int:
    """A port on 127.0.0.1 that is free now, below the kernel's range for outgoing connections.

    A port of that range could be taken by a client's connection while the server is down, and a
    client that connects to it then can even reach itself.
    A process gets the same port again only after all others of its share.
    """
    share, turns = _share()
    for port in itertools.islice(turns, share):
        if is_free(port):
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@functools.cache
def _share() -> tuple[int, Iterator[int]]:
    """How many ports this process picks from, and the ports in random order, repeated forever."""
    ports = range(_LOWEST, _first_outgoing_port())
    for number in random.sample(range(_SHARES), _SHARES):
        try:
            _claim.bind(f"\0batchyard-ports-{number}")
        except OSError:
            continue
        ports = ports[number::_SHARES]
        break
    return len(ports), itertools.cycle(random.sample(ports, len(ports)))


def is_free(port: int) -> bool:
    """Whether a server could listen on the port now."""
    with socket.socket() as probe:
        # As servers do: a connection in TIME_WAIT does not count, a listener does.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


class Ports:
    """The ports of one run directory, kept in its `ports.json`."""

    def __init__(self, run_dir: Path) -> None:
        self._file = run_dir / "ports.json"

    def get(self, name: str) -> int:
        """The port kept for `name`; chosen now if there is none."""
        kept = self._read()
        if name not in kept:
            # The other kept ports look free as long as their servers are down.
            while (port := free_port()) in kept.values():
                pass
            kept[name] = port
            make_private_directory(self._file.parent)
            draft = self._file.with_suffix(".draft")
            draft.write_text(json.dumps(kept, indent=2) + "\n")
            draft.replace(self._file)
        return kept[name]

    def require_free(self, *names: str) -> None:
        """Raise `SetupError` if a port kept for one of the names is in use."""
        for name in names:
            port = self.get(name)
            if not is_free(port):
                raise SetupError(
                    f"Port {port}, kept for {name}, is in use by another program. "
                    f"Stop that program (`ss -ltnp 'sport = :{port}'` names it), "
                    f"or delete {self._file} so that other ports are chosen."
                )

    def _read(self) -> dict[str, int]:
        try:
            kept = json.loads(self._file.read_text())
            return {str(name): int(port) for name, port in kept.items()}
        except FileNotFoundError:
            return {}
        except (ValueError, AttributeError, TypeError) as error:
            raise SetupError(
                f"{self._file} is damaged; delete it so that new ports are chosen."
            ) from error


def _first_outgoing_port() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except FileNotFoundError:
        return 0
