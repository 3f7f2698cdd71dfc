"""Which batches have to go first, so that no window closes before its batch is done. Pure."""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

#: A deadline is close when no more than this is left beside the work itself.
SLACK_SECONDS = 60
#: The same while the lane's rate is unknown.
BLIND_SECONDS = 900.0
#: Predictions are wrong by about this part of the work.
SLACK_RATIO = 0.1


class Deadline(NamedTuple):
    """What a batch still has to run, in tokens, and by when, in Unix seconds."""

    batch_id: str
    expires_at: float
    tokens: float
    tenant: str = ""
    #: The tenant's.
    weight: float = 1.0


def urgent(batches: Iterable[Deadline], *, now: float, tokens_per_second: float) -> list[str]:
    """The batches that go before the others of their tenants, the earliest deadline first.

    A tenant counts on its share of the rate only, beside all other tenants in `batches`. All its
    work that is due before a deadline has to fit before it. Where it only just fits, that work is
    urgent. Of one tenant, the earliest deadline first meets every deadline that any order meets.
    With a rate of 0, which is an unknown one, a batch is urgent shortly before its deadline.
    """
    by_tenant: defaultdict[str, list[Deadline]] = defaultdict(list)
    for batch in batches:
        by_tenant[batch.tenant].append(batch)
    weights = sum(some[0].weight for some in by_tenant.values())
    found: list[Deadline] = []
    for some in by_tenant.values():
        share = tokens_per_second * some[0].weight / weights
        found += _urgent_of_one(some, now=now, tokens_per_second=share)
    return [batch.batch_id for batch in sorted(found, key=_by_deadline)]


def _urgent_of_one(
    batches: Iterable[Deadline], *, now: float, tokens_per_second: float
) -> list[Deadline]:
    found: list[Deadline] = []
    waiting: list[Deadline] = []
    total = 0.0
    for batch in sorted(batches, key=_by_deadline):
        total += batch.tokens
        waiting.append(batch)
        slack = BLIND_SECONDS
        if tokens_per_second > 0:
            slack = total / tokens_per_second * (1 + SLACK_RATIO) + SLACK_SECONDS
        if batch.expires_at - now <= slack:
            found += waiting
            waiting.clear()
    return found


def _by_deadline(batch: Deadline) -> tuple[float, str]:
    return batch.expires_at, batch.batch_id
