"""Which slices a lane keeps ready, in the order of `shared/ordering`. Pure: time is an argument."""

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from shared.ordering.deadlines import Deadline, urgent
from shared.ordering.line import Line
from shared.ordering.shares import Shares
from shared.ordering.work import Work
from shared.slices import MAX_CALL_ENTRIES, ReadySlice

#: Slices in a ready list: as many as one script call puts in order.
MAX_READY = MAX_CALL_ENTRIES
#: How often as many slices are read of a batch whose slices were all chosen.
_DEEPER = 4


class LaneNow(NamedTuple):
    """What the order depends on besides the slices themselves."""

    #: Tokens per unit of weight that each tenant has had.
    served: Mapping[str, float]
    #: Of tenants that have another one than 1.
    weights: Mapping[str, float]
    #: Predicted tokens that the lane commits in a second; 0 if nobody knows.
    tokens_per_second: float
    #: Tenants whose slices wait: too many engines have died of their requests today.
    held: AbstractSet[str] = frozenset()


def ready_list(
    slices: Sequence[ReadySlice], lane: LaneNow, *, now: float, rows: int
) -> list[ReadySlice]:
    """The slices to keep ready, the first to run first, until they hold `rows` rows."""
    slices = [slice_ for slice_ in slices if slice_.tenant not in lane.held]
    by_member = {(slice_.batch_id, slice_.index): slice_ for slice_ in slices}
    line = Line(
        Shares(lane.served),
        last_turns={slice_.batch_id: slice_.claimed_at for slice_ in slices},
        is_lifting=False,
    )
    for slice_ in slices:
        line.add(_work(slice_, lane.weights.get(slice_.tenant, 1.0)))
    first = urgent(
        _deadlines(slices, lane.weights), now=now, tokens_per_second=lane.tokens_per_second
    )
    line.hurry(first, tokens_per_second=lane.tokens_per_second)
    chosen: list[ReadySlice] = []
    while len(line) and rows > 0 and len(chosen) < MAX_READY:
        work, _ = line.pop(now)
        chosen.append(by_member[work.batch_id, work.number])
        rows -= chosen[-1].rows
    return chosen


def slices_per_batch(batches: int) -> int:
    """How many slices of each batch to read first: a few of many, and all of a single one."""
    return max(2, MAX_READY // batches)


def exhausted(
    slices: Sequence[ReadySlice], chosen: Sequence[ReadySlice], *, depth: int
) -> tuple[list[str], int]:
    """The batches of which more slices could have been chosen than the `depth` that were read.

    Returns them, and how many slices of each to read now.
    """
    if depth >= MAX_READY:
        return [], depth
    were_read = Counter(slice_.batch_id for slice_ in slices if not slice_.is_ready)
    were_chosen = Counter(slice_.batch_id for slice_ in chosen if not slice_.is_ready)
    batches = [id_ for id_, count in were_chosen.items() if count == were_read[id_] >= depth]
    return batches, min(MAX_READY, _DEEPER * depth)


def _deadlines(slices: Sequence[ReadySlice], weights: Mapping[str, float]) -> list[Deadline]:
    """What each batch still has to run, as far as its first slice is like the others."""
    firsts = {slice_.batch_id: slice_ for slice_ in reversed(slices)}
    return [
        Deadline(
            id_,
            first.expires_at,
            first.tokens / first.rows * first.rows_left,
            first.tenant,
            weights.get(first.tenant, 1.0),
        )
        for id_, first in firsts.items()
    ]


def _work(slice_: ReadySlice, weight: float) -> Work:
    return Work(
        batch_id=slice_.batch_id,
        number=slice_.index,
        tenant=slice_.tenant,
        priority=slice_.priority,
        created_at=slice_.created_at,
        expires_at=slice_.expires_at,
        tokens=slice_.tokens,
        weight=weight,
    )
