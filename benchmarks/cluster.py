"""A client of the fleet's Ray for a moment, or for as long as there are lines to read.

python -m benchmarks.cluster remove|restore|pids|starts|computed CATALOG MODEL
"""

import asyncio
import sys
import time
from pathlib import Path

import msgspec
import ray
from ray import serve
from ray.util.state import list_actors

from shared.catalog import Catalog, Lane
from shared.catalog_file import load_catalog
from worker.engine_client import EngineClient
from worker.engine_deployment import ensure_engine

_POLL_SECONDS = 0.2


def _remove(catalog: Catalog, lane: Lane) -> None:
    """Let Serve take the engine's application away, with its replicas, which takes some time."""
    serve.delete(catalog.app_name(lane), _blocking=False)


def _restore(catalog: Catalog, lane: Lane) -> None:
    """Deploy it again once it is gone: it has no replica until there is a row."""
    while catalog.app_name(lane) in serve.status().applications:
        time.sleep(_POLL_SECONDS)
    ensure_engine(catalog, lane)


def _pids(catalog: Catalog, lane: Lane) -> None:
    """Print the processes of the engine's replicas."""
    for actor in list_actors(filters=[("state", "=", "ALIVE")], limit=1000):
        if str(actor.class_name).startswith(f"ServeReplica:{catalog.app_name(lane)}"):
            print(actor.pid)


def _starts(catalog: Catalog, lane: Lane) -> None:
    """Print what the starts of the engine's replicas were made of, as JSON."""
    found = asyncio.run(EngineClient(catalog.app_name(lane)).numbers())
    print(msgspec.json.encode([one.start for one in found]).decode())


def _computed(catalog: Catalog, lane: Lane) -> None:
    """For each line, print what replicas have computed: each one's clock and tokens, as JSON."""

    async def answer() -> None:
        client = EngineClient(catalog.app_name(lane))
        while await asyncio.to_thread(sys.stdin.readline):
            found = {
                one.replica: (one.clock, one.computed_tokens) for one in await client.numbers()
            }
            print(msgspec.json.encode(found).decode(), flush=True)

    asyncio.run(answer())


if __name__ == "__main__":
    what, path, model = sys.argv[1:]
    ray.init(log_to_driver=False)
    found = load_catalog(Path(path))
    acts = {
        "remove": _remove,
        "restore": _restore,
        "pids": _pids,
        "starts": _starts,
        "computed": _computed,
    }
    acts[what](found, found.lane_of(model))
