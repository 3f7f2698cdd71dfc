"""Which replica of an engine gets a call: the one with the fewest, and in turns among equals.

Serve's own way takes the better of two at random. What comes in large pieces is then shared
unevenly, and engines that answer fast are all alike to it.
"""

import math
from collections.abc import Hashable, Mapping
from typing import Any, TypeVar

from ray.serve.request_router import (
    FIFOMixin,
    MultiplexMixin,
    PendingRequest,
    ReplicaID,
    RequestRouter,
    RunningReplica,
)

from worker.avoided_replicas import is_avoided

K = TypeVar("K", bound=Hashable)


class Turns:
    """In which order replicas get a call."""

    def __init__(self) -> None:
        #: The number of the last call that each replica was given.
        self._given: dict[Hashable, int] = {}
        self._calls = 0

    def next(self, calls: Mapping[K, int | None]) -> list[K]:
        """The replicas, the best first, which gets the turn.

        `calls` says how many each has, None where that is not known: it comes last.
        """

        def load(one: K) -> tuple[float, int]:
            count = calls[one]
            return math.inf if count is None else count, self._given.get(one, 0)

        ranked = sorted(calls, key=load)
        self._calls += 1
        # Those that are gone are forgotten.
        self._given = {one: call for one, call in self._given.items() if one in calls}
        if ranked:
            self._given[ranked[0]] = self._calls
        return ranked


class EvenRouter(FIFOMixin, MultiplexMixin, RequestRouter):
    """That of one handle; each process that calls an engine has one."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)  # type: ignore[no-untyped-call]  # Ray's
        self._turns = Turns()
        #: Those that were there when it last looked.
        self._met = set[ReplicaID]()

    def initialize_state(self, **_: Any) -> None:
        """There is nothing to set up."""

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """All of them, the best first: Serve takes the first that has the fewest and has room.

        It asks those of which nothing is known while others take calls. Where nothing is known of
        any, because no call was made lately, it would ask first: for 0.1 seconds, and while they
        are too busy to answer for twice as long again and again. None is ever full, so a call
        goes out at once. Those that have given rows back are left out, unless there is no other.
        """
        if pending_request is not None:
            # It pauses before it asks again when none has room.
            pending_request.routing_context.should_backoff = True
        known = {replica.replica_id: replica for replica in candidate_replicas}
        cache = self.replica_queue_len_cache
        if all(cache.get(id_) is None for id_ in known):
            for id_ in known:
                cache.update(id_, 0)
        wanted = [id_ for id_ in known if not is_avoided(id_.unique_id)]
        calls = {id_: cache.get(id_) for id_ in wanted or known}
        return [[known[id_] for id_ in self._turns.next(calls)]]

    async def _probe_queue_lens(
        self, replicas: list[RunningReplica], backoff_index: int
    ) -> list[tuple[RunningReplica, int | None]]:
        """How many calls these have. Those that are new have none, and are not asked.

        Serve asks new ones while they have their first calls, and takes the answers a tenth of a
        second later: one that counts a call that is over would keep others away for ten seconds.
        """
        cache = self.replica_queue_len_cache
        new = [one for one in replicas if one.replica_id not in self._met]
        known = [one for one in replicas if one.replica_id in self._met]
        for one in new:
            if cache.get(one.replica_id) is None:
                cache.update(one.replica_id, 0)
        # Those that are gone are forgotten.
        self._met = set(self.curr_replicas)
        found: list[tuple[RunningReplica, int | None]] = await super()._probe_queue_lens(
            known, backoff_index
        )
        return [*((one, cache.get(one.replica_id)) for one in new), *found]
