"""Which batches have to go first, so that no window closes before its batch is done. Pure."""

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


def urgent(batches: Iterable[Deadline], *, now: float, tokens_per_second: float) -> list[str]:
    """The batches that have to go before all others, the earliest deadline first.

    All work that is due before a deadline has to fit before it. Where it only just fits, that work
    is urgent. On one engine, the earliest deadline first meets every deadline that any order meets.
    With a rate of 0, which is an unknown one, a batch is urgent shortly before its deadline.
    """
    found: list[str] = []
    waiting: list[str] = []
    total = 0.0
    for batch in sorted(batches, key=lambda batch: (batch.expires_at, batch.batch_id)):
        total += batch.tokens
        waiting.append(batch.batch_id)
        slack = BLIND_SECONDS
        if tokens_per_second > 0:
            slack = total / tokens_per_second * (1 + SLACK_RATIO) + SLACK_SECONDS
        if batch.expires_at - now <= slack:
            found += waiting
            waiting.clear()
    return found
