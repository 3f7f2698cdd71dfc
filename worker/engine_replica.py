"""The class that Serve deploys as an engine.

Serve stores it by its import path, and a replica of a deployment that an older version made looks
for it here: it must keep its name and its module. Imports nothing: whoever deploys an engine would
import vLLM with it.
"""

from typing import Any


class EngineReplica:
    """Makes the `BatchServer` that answers in the replica's process."""

    def __new__(cls, *_: Any) -> Any:
        import os

        from worker.engine_stages import StageClock
        from worker.engine_variables import FORKED_CORE_VARIABLE
        from worker.fork_server import ForkServer
        from worker.serve_log import serve_log_kept

        clock = StageClock()
        clock.end("process")
        # It imports vLLM while this process does.
        forks = ForkServer() if os.environ.get(FORKED_CORE_VARIABLE) else None
        with serve_log_kept():
            from worker.engine import BatchServer

        # Serve calls `__init__` of what this returns.
        server = BatchServer.__new__(BatchServer)
        server.clock, server.forks = clock, forks
        return server
