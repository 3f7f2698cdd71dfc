"""Deletes Ray's records of lane jobs that are over: Ray keeps them for ever."""

import time

import structlog

from dispatcher.cluster import Cluster

log = structlog.get_logger()

#: What an operator may still want to look at, and longer than a dispatcher looks at a dead job.
_KEPT_SECONDS = 86_400.0


class JobRecords:
    """The records of one Ray cluster."""

    def __init__(self, cluster: Cluster, *, kept_seconds: float = _KEPT_SECONDS) -> None:
        self._cluster = cluster
        self._kept_seconds = kept_seconds

    async def forget(self) -> None:
        """Delete the records of lane jobs that ended long ago. Raises TransientError."""
        over = await self._cluster.over(seconds=self._kept_seconds, now=time.time())
        for job in over:
            await self._cluster.forget(job)
        if over:
            log.info("lane_jobs.forgotten", jobs=len(over))
