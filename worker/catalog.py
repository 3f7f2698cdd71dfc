"""Waits for the catalog that the dispatcher reads: Kubernetes changes it node by node."""

import time
from pathlib import Path

import structlog

from shared.catalog_file import catalog_digest

log = structlog.get_logger()

#: How long a node may take to update a changed ConfigMap in its pods.
_PATIENCE_SECONDS = 120.0
_POLL_SECONDS = 0.5


def wait_for_catalog(
    path: Path, digest: str, *, patience_seconds: float = _PATIENCE_SECONDS
) -> None:
    """Return when the file has this digest, or when it has not got it in time.

    An empty digest accepts any file.
    """
    deadline = time.monotonic() + patience_seconds
    while digest and catalog_digest(path) != digest:
        if time.monotonic() >= deadline:
            log.warning("lane_job.other_catalog", catalog=str(path))
            return
        time.sleep(_POLL_SECONDS)
