"""How fast batches have run: a few hundred marks of each, from its start to its end."""

from collections.abc import Sequence
from typing import NamedTuple

from shared.state.away import Away
from shared.state.client import Client


class Mark(NamedTuple):
    """How many rows had a result at a time (Unix seconds), and the tokens of these rows."""

    at: float
    rows: int
    tokens: int


class Paces:
    """The noun `pace` of State. Scripts write it; a rebuild does not bring it back."""

    def __init__(self, redis: Client, namespace: str, away: Away) -> None:
        self._redis = redis
        self._namespace = namespace
        self._away = away

    async def of(self, batch_ids: Sequence[str], *, last: int = 0) -> list[list[Mark]]:
        """The marks of each batch, or its last ones, in one round trip; none if they are gone."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for batch_id in batch_ids:
                pipe.lrange(f"{self._namespace}pace:{batch_id}", -last, -1)
            found = dict(zip(batch_ids, await pipe.execute(), strict=True))
        # Many batches that are here have none, too.
        away = await self._away.records_among([one for one, texts in found.items() if not texts])
        found |= {
            one: stored.pace[-last:] for one, stored in away.items() if stored.seconds_left > 0
        }
        return [[_mark(text) for text in found[one]] for one in batch_ids]


def _mark(text: str) -> Mark:
    at_ms, rows, tokens = text.split()
    return Mark(int(at_ms) / 1000, int(rows), int(tokens))
