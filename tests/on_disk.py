"""Which queues and bindings RabbitMQ has on disk, and would find again after a kill.

RabbitMQ 3.10 confirms both before that. A new quorum queue is in Ra's registry up to three seconds
later. Mnesia's log has a new binding at once, but another process writes the decision that it
counts: on a busy machine after the sync, where it waits in Erlang's `disk_log` for up to two
seconds. A broker that is killed meanwhile knows the queue and not the binding. Versions that keep
them elsewhere are not checked.
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
