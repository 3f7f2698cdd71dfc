"""From one look at the engines to the next: what Ray says becomes records and GPU seconds. Pure."""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from itertools import chain
from typing import Any, NamedTuple

from shared.card_share import card_share
from shared.catalog import Catalog
from shared.engines import (
    NO_ROOM,
    EngineRecord,
    EngineSeconds,
    EngineState,
    Replica,
    ReplicaState,
    innermost_reason,
)
from shared.errors import NotFoundError

#: The one deployment in each application.
_DEPLOYMENT = "engine"
#: Of a replica that is gone, no more time counts than this after it was last seen.
_UNSEEN_SECONDS = 5.0
_REPLICA_STATES: Mapping[str, ReplicaState] = {
    "RUNNING": "running",
    "PENDING_MIGRATION": "running",
    "STOPPING": "stopping",
}
#: The states of an engine until it runs, or until Serve gives up.
_TRIED: frozenset[EngineState] = frozenset({"waiting", "starting", "stopping"})
_NO_FAULT = ("", NO_ROOM)
#: Serve's states of an application that is about to be replaced or removed.
_DELETING = "DELETING"
#: What Serve says while nothing has gone wrong but the pool has no room.
_UNPLACED = "to be scheduled"
_SLOW = "to initialize"
#: What it says of a change of the number of replicas that it is about to make.
_SCALES = ("Upscaling from", "Downscaling from")


class Seen(NamedTuple):
    """The engines at one look, and what their replicas' time since the look before comes to."""

    engines: list[EngineRecord]
    seconds: list[EngineSeconds]


def look(
    applications: Mapping[str, Any],
    before: Mapping[str, EngineRecord],
    catalog: Catalog,
    *,
    now: float,
) -> Seen:
    """`applications` are those of Ray Serve's REST API, `before` the engines of the last look.

    An engine whose lane is not in the catalog any more is kept for as long as Ray has it.
    """
    engines = [
        _engine(lane, found, before.get(lane), _gpus(catalog, lane), now)
        for lane, found in sorted(_by_lane(applications).items())
    ]
    return Seen(engines, list(_seconds(engines, before, now)))


def _by_lane(applications: Mapping[str, Any]) -> dict[str, list[Any]]:
    """A lane has several applications while its engine is replaced; the one to stay comes first."""
    lanes: dict[str, list[Any]] = {}
    for name, found in applications.items():
        lane, dot, _ = name.rpartition(".")
        if dot and "@" in lane:
            lanes.setdefault(lane, []).append(found)
    for found in lanes.values():
        found.sort(key=lambda app: app.get("status") == _DELETING)
    return lanes


def _engine(
    lane: str, applications: list[Any], before: EngineRecord | None, gpus: float, now: float
) -> EngineRecord:
    known = {one.id: one for one in before.replicas} if before else {}
    current, *others = (
        [
            _replica(found, known.get(found["replica_id"]), now)
            for found in _deployment(app).get("replicas", ())
        ]
        for app in applications
    )
    state, reason = _state(applications[0], current)
    if before and {state, before.state} <= _TRIED and reason in _NO_FAULT:
        # Serve forgets why a start failed while the next one takes long.
        reason = reason if before.reason in _NO_FAULT else before.reason
    replicas = (*current, *chain(*others))
    began = [one for one in replicas if one.ready_at and not _was_ready(known, one)]
    last_start, started = max(
        ((one.ready_at - one.placed_at, one.id) for one in began if one.ready_at and one.placed_at),
        default=(before.last_start_seconds, before.last_start_replica) if before else (0.0, ""),
    )
    return EngineRecord(
        lane=lane,
        state=state,
        since=before.since if before and before.state == state else now,
        seen_at=now,
        reason=reason,
        gpus=gpus,
        replicas=replicas,
        starts=(before.starts if before else 0) + len(began),
        last_start_seconds=last_start,
        last_start_replica=started,
    )


def _replica(found: Mapping[str, Any], known: Replica | None, now: float) -> Replica:
    machine = found.get("node_ip") or ""
    state = _REPLICA_STATES.get(found["state"], "starting" if machine else "waiting")
    placed_at = known.placed_at if known else None
    if placed_at is None and machine:
        # Ray has the time at which it began to look for room.
        placed_at = now if known else min(now, found["start_time_s"])
    ready_at = known.ready_at if known else None
    if ready_at is None and state == "running":
        ready_at = now
    return Replica(found["replica_id"], state, placed_at, ready_at, machine)


def _was_ready(known: Mapping[str, Replica], replica: Replica) -> bool:
    before = known.get(replica.id)
    return before is not None and before.ready_at is not None


def _state(app: Mapping[str, Any], replicas: Iterable[Replica]) -> tuple[EngineState, str]:
    """The engine's state, and the reason why it does not run."""
    engine = _deployment(app)
    message = str(engine.get("message") or "")
    if engine.get("status_trigger") == "REPLICA_STARTUP_FAILED":
        return "failed", innermost_reason(message)
    if app.get("status") == "DEPLOY_FAILED":
        return "failed", innermost_reason(message or str(app.get("message") or ""))
    return _state_of({one.state for one in replicas}, message)


def _state_of(states: AbstractSet[ReplicaState], message: str) -> tuple[EngineState, str]:
    """By its replicas, and by what Serve says of them."""
    if "running" in states:
        return "running", ""
    if "starting" in states:
        # After a start that failed, Serve tries again, and says why.
        return "starting", "" if _is_patience(message) else innermost_reason(message)
    if "waiting" in states:
        if message and not _is_patience(message):
            return "waiting", innermost_reason(message)
        return "waiting", NO_ROOM
    return ("stopping" if "stopping" in states else "asleep"), ""


def _is_patience(message: str) -> bool:
    return not message or _UNPLACED in message or _SLOW in message or message.startswith(_SCALES)


def _deployment(app: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = app.get("deployments", {}).get(_DEPLOYMENT, {})
    return found


def _gpus(catalog: Catalog, lane: str) -> float:
    """How many GPUs a replica has, which may be a part of one."""
    try:
        found = catalog.lane_named(lane)
    except NotFoundError:
        return 1
    return catalog.model(found.model).gpus * card_share(catalog.pools[found.pool])


def _seconds(
    engines: Iterable[EngineRecord], before: Mapping[str, EngineRecord], now: float
) -> Iterable[EngineSeconds]:
    after = {one.lane: one for one in engines}
    for lane in sorted({*before, *after}):
        old, new = before.get(lane), after.get(lane)
        known = {one.id: one for one in old.replicas} if old else {}
        here = {one.id: one for one in new.replicas} if new else {}
        gpus = (old or new or _NOBODY).gpus
        seen_at = old.seen_at if old else 0.0
        starting = total = 0.0
        for id_ in sorted({*known, *here}):
            replica = here.get(id_, known.get(id_, _NO_REPLICA))
            until = now if id_ in here else min(now, seen_at + _UNSEEN_SECONDS)
            since = _counted_since(known.get(id_), replica, seen_at)
            if since is None:
                continue
            ready_at = until if replica.ready_at is None else replica.ready_at
            total += max(0.0, until - since)
            starting += max(0.0, min(until, ready_at) - since)
        if total:
            yield EngineSeconds(lane, _micros(gpus * starting), _micros(gpus * total))


_NO_REPLICA = Replica("", "stopping")
_NOBODY = EngineRecord(lane="", state="asleep", since=0, seen_at=0)


def _counted_since(old: Replica | None, new: Replica, seen_at: float) -> float | None:
    """From when the replica's time has not been counted; None if it has no GPUs."""
    if new.placed_at is None:
        return None
    return new.placed_at if old is None or old.placed_at is None else seen_at


def _micros(seconds: float) -> int:
    return round(seconds * 1_000_000)
