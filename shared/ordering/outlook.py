"""When a new batch would end on its lane, beside the shares of the others. Pure.

It sees the other tenants as a class and the rate rounded, so that no answer measures them.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shared.ordering.load import assumed_sharers, load_of, rounded_rate, typical_rows
from shared.ordering.pace import Pace


class RowsLeft(NamedTuple):
    """Rows of a batch that have no result yet, and when its window closes, in Unix seconds."""

    tenant: str
    rows: int
    expires_at: float


class LaneOutlook(NamedTuple):
    """What a lane has to run, and how fast it runs; a rate of 0 is an unknown one."""

    tokens_per_second: float = 0.0
    rows_per_second: float = 0.0
    running: Sequence[RowsLeft] = ()
    pace: Pace = Pace()
    #: Seconds until its engine gives results; 0 if it runs.
    starts_in: float = 0.0


def expected_end(
    lane: LaneOutlook,
    *,
    tenant: str,
    tokens: int,
    kind: str = "",
    expires_at: float,
    weights: Mapping[str, float],
    now: float,
) -> float | None:
    """When a batch of this many tokens, and of rows of this kind, would end; None if nobody knows.

    Of the tenant's own batches, those go first whose windows close before this one's.
    """
    known = lane.pace.of(kind)
    # A pace tells nothing of others, so it need not be rounded.
    rate = known.predicted / known.seconds if known else rounded_rate(lane.tokens_per_second)
    if not rate or lane.rows_per_second <= 0:
        return None
    tokens_per_row = lane.tokens_per_second / lane.rows_per_second
    ahead = sum(
        batch.rows
        for batch in lane.running
        if batch.tenant == tenant and batch.expires_at <= expires_at
    )
    others = [batch for batch in lane.running if batch.tenant != tenant]
    own = tokens + ahead * tokens_per_row
    between = typical_rows(load_of(sum(batch.rows for batch in others))) * tokens_per_row
    weight = weights.get(tenant, 1.0)
    share = weight / (weight + assumed_sharers(len({batch.tenant for batch in others})) - 1)
    # Others take their shares only as long as they have work.
    return now + lane.starts_in + min(own / share, own + between) / rate
