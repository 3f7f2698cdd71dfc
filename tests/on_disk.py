"""What RabbitMQ has on disk of its queues and bindings, and would find again after a kill.

3.10 says that all is well before. A new quorum queue is in Ra's registry three seconds later at
most. Of a new binding Mnesia's log has the change, but the decision that it counts is handed to
another process: on a busy machine that comes after the sync, and waits in Erlang's `disk_log` for
up to two seconds. Killed meanwhile, the broker knows the queue and not the binding. A version that
keeps them elsewhere is not asked.
"""

import re
from pathlib import Path

_ROUTES = b"rabbit_durable_route"
#: Begins each entry of a log of Erlang's.
_ENTRY = b"bWLA"
#: A transaction's number, up to the process that it is of.
_TRANSACTION = re.compile(rb"tid(.{2,12}?)[Xgh]d\0", re.DOTALL)


def are_registered(run_dir: Path, *queues: str) -> bool:
    """Whether the broker of this folder would know these quorum queues."""
    registries = [path.read_bytes() for path in run_dir.rglob("names.dets")]
    return not registries or all(
        any(name.encode() in registry for registry in registries) for name in queues
    )


def are_bound(run_dir: Path, *queues: str) -> bool:
    """Whether it would know a binding of each of these queues."""
    tables = [path.read_bytes() for path in run_dir.rglob(f"{_ROUTES.decode()}.DC?")]
    logs = [path.read_bytes().split(_ENTRY) for path in run_dir.rglob("LATEST.LOG")]
    return not tables or all(
        any(name.encode() in table for table in tables)
        or any(_is_decided(log, name.encode()) for log in logs)
        for name in queues
    )


def _is_decided(log: list[bytes], queue: bytes) -> bool:
    for number, entry in enumerate(log):
        if _ROUTES in entry and queue in entry:
            if (found := _TRANSACTION.search(entry)) is None:
                return True
            decided = b"tid" + found[1]
            return any(decided in later and b"committed" in later for later in log[number + 1 :])
    return False
