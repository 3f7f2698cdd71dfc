"""The catalog as a lane job finds it: on Kubernetes a change comes to the nodes one by one."""

import time
from pathlib import Path

import structlog

from shared.catalog import catalog_digest

log = structlog.get_logger()

#: How long a node may take to put a changed ConfigMap into the volumes of its pods.
_PATIENCE_SECONDS = 120.0
_POLL_SECONDS = 0.5


def wait_for_catalog(
    path: Path, digest: str, *, patience_seconds: float = _PATIENCE_SECONDS
) -> None:
    """Return once the file is the one that the dispatcher reads, or does not become it in time.

    An empty digest is any file's.
    """
    deadline = time.monotonic() + patience_seconds
    while digest and catalog_digest(path) != digest:
        if time.monotonic() >= deadline:
            log.warning("lane_job.other_catalog", catalog=str(path))
            return
        time.sleep(_POLL_SECONDS)
