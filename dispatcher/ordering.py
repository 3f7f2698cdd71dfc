"""The policy of a lane: which slices run next, for all its tenants. Pure: time is an argument.

Batches that are close to their deadline go first. Then tenants get their fair share of predicted
tokens. Within a tenant, priority counts, which grows with age; then batches take turns, so that a
small batch does not wait behind a large one.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from shared.ordering.waiting_batch import AGEING_SECONDS
from shared.slices import ReadySlice

#: Slices in a ready list: as many as one script call puts in order.
MAX_READY = 100
#: A batch with less time left than this goes before everything else.
_URGENT_SECONDS = 900
#: Waiting this long is worth one turn.
_TURN_SECONDS = 60
#: A tenant that was idle may be this many predicted tokens behind the others. It gets its share
#: soon, but not the share of its idle time.
_MAX_CREDIT = 200_000
#: The assumed rows of a slice.
_ROWS_PER_SLICE = 32


def ready_list(
    slices: Sequence[ReadySlice], served: Mapping[str, int], *, now: float, rows: int
) -> list[ReadySlice]:
    """The lane's new ready list, in order; empty if nothing is to be added to the present one.

    What is ready already stays so, behind what is more urgent.
    """
    chosen = order(slices, served, now=now, rows=rows)
    picked = set(chosen)
    chosen += [slice_ for slice_ in slices if slice_.is_ready and slice_ not in picked]
    # Not more than are ordered together: the others would keep their old places.
    space = max(0, MAX_READY - sum(slice_.is_ready for slice_ in chosen))
    added = set([slice_ for slice_ in chosen if not slice_.is_ready][:space])
    return [slice_ for slice_ in chosen if slice_.is_ready or slice_ in added] if added else []


def slices_per_batch(rows: int, batches: int) -> int:
    """How many slices of each batch to choose from, for a ready list of `rows` rows.

    A slice may be a single row. A few of each of many batches are enough, and one batch alone has
    to fill the list.
    """
    return max(2, min(MAX_READY, rows // _ROWS_PER_SLICE), MAX_READY // batches)


def order(
    slices: Sequence[ReadySlice],
    served: Mapping[str, int],
    *,
    now: float,
    rows: int,
    max_slices: int = MAX_READY,
) -> list[ReadySlice]:
    """The slices to keep ready, the first to run first, until they hold `rows` rows.

    `served` are the predicted tokens that each tenant was given so far.
    """
    urgent = sorted(
        (slice_ for slice_ in slices if slice_.expires_at - now < _URGENT_SECONDS),
        key=lambda slice_: (slice_.expires_at, slice_.batch_id, slice_.index),
    )
    others = [slice_ for slice_ in slices if slice_.expires_at - now >= _URGENT_SECONDS]
    chosen: list[ReadySlice] = []
    held = 0
    for slice_ in [*urgent, *_by_fair_share(others, served, now)]:
        if held >= rows or len(chosen) >= max_slices:
            break
        chosen.append(slice_)
        held += slice_.rows
    return chosen


def _by_fair_share(
    slices: Sequence[ReadySlice], served: Mapping[str, int], now: float
) -> list[ReadySlice]:
    queues: defaultdict[str, list[ReadySlice]] = defaultdict(list)
    for slice_ in sorted(slices, key=lambda slice_: _turn(slice_, now), reverse=True):
        queues[slice_.tenant].append(slice_)
    floor = max((served.get(tenant, 0) for tenant in queues), default=0) - _MAX_CREDIT
    given = {tenant: max(served.get(tenant, 0), floor) for tenant in queues}
    ordered = []
    while queues:
        tenant = min(queues, key=lambda name: (given[name], name))
        slice_ = queues[tenant].pop()
        ordered.append(slice_)
        given[tenant] += slice_.tokens
        if not queues[tenant]:
            del queues[tenant]
    return ordered


def _turn(slice_: ReadySlice, now: float) -> tuple[float, float, int, str, int]:
    waited = max(0.0, now - slice_.created_at)
    return (
        -(slice_.priority + waited // AGEING_SECONDS),
        slice_.index - waited // _TURN_SECONDS,
        slice_.created_at,
        slice_.batch_id,
        slice_.index,
    )
