"""Which slices of a lane run next, for all its tenants. Pure: time is an argument.

Batches close to their deadline first; then tenants by their fair share in predicted tokens; within
a tenant priority with ageing, then batches by turns, so that a small one is not behind a large one.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from shared.slices import AGEING_SECONDS, ReadySlice

#: A batch with less time left than this goes before everything else.
_URGENT_SECONDS = 900
#: Waiting this long is worth one turn.
_TURN_SECONDS = 60
#: How far behind a tenant that was idle may start, in predicted tokens: it gets its share soon,
#: but not all that it never asked for.
_MOST_CREDIT = 200_000


def order(
    slices: Sequence[ReadySlice],
    served: Mapping[str, int],
    *,
    now: float,
    rows: int,
    most: int = 100,
) -> list[ReadySlice]:
    """The slices to keep ready, the first to run first, until they hold `rows` rows.

    `served` are the predicted tokens that each tenant was given so far.
    """
    urgent = sorted(
        (piece for piece in slices if piece.expires_at - now < _URGENT_SECONDS),
        key=lambda piece: (piece.expires_at, piece.batch_id, piece.index),
    )
    others = [piece for piece in slices if piece.expires_at - now >= _URGENT_SECONDS]
    chosen: list[ReadySlice] = []
    held = 0
    for piece in [*urgent, *_by_fair_share(others, served, now)]:
        if held >= rows or len(chosen) >= most:
            break
        chosen.append(piece)
        held += piece.rows
    return chosen


def _by_fair_share(
    slices: Sequence[ReadySlice], served: Mapping[str, int], now: float
) -> list[ReadySlice]:
    queues: defaultdict[str, list[ReadySlice]] = defaultdict(list)
    for piece in sorted(slices, key=lambda piece: _turn(piece, now), reverse=True):
        queues[piece.tenant].append(piece)
    floor = max((served.get(tenant, 0) for tenant in queues), default=0) - _MOST_CREDIT
    given = {tenant: max(served.get(tenant, 0), floor) for tenant in queues}
    ordered = []
    while queues:
        tenant = min(queues, key=lambda name: (given[name], name))
        piece = queues[tenant].pop()
        ordered.append(piece)
        given[tenant] += piece.tokens
        if not queues[tenant]:
            del queues[tenant]
    return ordered


def _turn(piece: ReadySlice, now: float) -> tuple[float, float, int, str, int]:
    waited = max(0.0, now - piece.created_at)
    return (
        -(piece.priority + waited // AGEING_SECONDS),
        piece.index - waited // _TURN_SECONDS,
        piece.created_at,
        piece.batch_id,
        piece.index,
    )
