"""A client of the fleet's Ray for a moment: `python -m benchmarks.gpu.cluster remove|pids APP`."""

import sys

import ray
from ray import serve
from ray.util.state import list_actors


def _remove(app: str) -> None:
    """Take the engine's application away, with its replicas."""
    serve.delete(app)


def _pids(app: str) -> None:
    """Print the processes of the engine's replicas."""
    actors = list_actors(filters=[("state", "=", "ALIVE")], limit=1000)
    for actor in actors:
        if str(actor.class_name).startswith(f"ServeReplica:{app}"):
            print(actor.pid)


if __name__ == "__main__":
    ray.init(log_to_driver=False)
    {"remove": _remove, "pids": _pids}[sys.argv[1]](sys.argv[2])
