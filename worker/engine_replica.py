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
        from pathlib import Path

        from shared.errors import SetupError
        from worker.engine_stages import StageClock
        from worker.engine_variables import FORKED_CORE_VARIABLE, MODEL_FOLDER_VARIABLE
        from worker.fork_server import ForkServer
        from worker.serve_log import serve_log_kept

        # Before vLLM is imported, here and there: Serve tries three times.
        folder = os.environ.get(MODEL_FOLDER_VARIABLE)
        if folder and not Path(folder).exists():
            raise SetupError(f"The model's folder {folder} does not exist on this machine.")
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
