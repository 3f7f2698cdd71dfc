"""Which replica of an engine gets a call: the one with the fewest, and in turns among equals.

Serve's own way takes the better of two at random. What comes in large pieces is then shared
unevenly, and engines that answer fast are all alike to it.
"""

import math
from typing import Any

from ray.serve.request_router import (
    FIFOMixin,
    MultiplexMixin,
    PendingRequest,
    RequestRouter,
    RunningReplica,
)


class EvenRouter(FIFOMixin, MultiplexMixin, RequestRouter):
    """That of one handle; each process that calls an engine has one."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)  # type: ignore[no-untyped-call]  # Ray's
        #: The number of the last call that each replica was given.
        self._given: dict[Any, int] = {}
        self._calls = 0

    def initialize_state(self, **_: Any) -> None:
        """There is nothing to set up."""

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """All of them, the best first: Serve takes the first that has the fewest and has room.

        It asks those of which nothing is known while others take calls.
        """
        if pending_request is not None:
            # It pauses before it asks again when none has room.
            pending_request.routing_context.should_backoff = True
        ranked = sorted(candidate_replicas, key=self._load)
        if ranked:
            self._calls += 1
            self._given[ranked[0].replica_id] = self._calls
            here = {replica.replica_id for replica in candidate_replicas}
            self._given = {id_: call for id_, call in self._given.items() if id_ in here}
        return [ranked]

    def _load(self, replica: RunningReplica) -> tuple[float, int]:
        calls = self.replica_queue_len_cache.get(replica.replica_id)
        return math.inf if calls is None else calls, self._given.get(replica.replica_id, 0)
