"""Serve's log in a replica, which vLLM would close. Imports nothing of either."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import MemoryHandler


@contextmanager
def serve_log_kept() -> Iterator[None]:
    """Let Serve's log of this process write where it does now, whatever is imported meanwhile.

    vLLM configures its own loggers when it is imported, and Python then closes the handlers of all
    others. A closed one of Serve's keeps what it is given in memory for ever, and a replica that
    cannot name its log file is stopped, with its engine, when Serve's controller starts again.
    """
    handlers = logging.getLogger("ray.serve").handlers
    targets = {one: one.target for one in handlers if isinstance(one, MemoryHandler)}
    try:
        yield
    finally:
        for handler, target in targets.items():
            # It opens its file again.
            handler.setTarget(target)
