"""What new batches are told of their lanes: whether they can be done in time."""

import asyncio
import time
from collections.abc import Iterable, Mapping

from shared.lane_waits import starts_in
from shared.openai.shapes import BatchWarning
from shared.ordering.outlook import LaneOutlook, expected_end
from shared.ordering.pace import TokensOfRows, kind_of
from shared.state import State
from shared.state.lanes import LaneCost
from shared.submission.warnings import deadline_at_risk
from shared.tenants import weights

#: For how long what was read of a lane is used.
_FRESH_SECONDS = 2.0


class LaneOutlooks:
    """The outlooks of lanes, read at most once in two seconds each."""

    def __init__(self, state: State, given: Mapping[str, float] | None = None) -> None:
        """`given` are the weights of tenants for which no other is set."""
        self._state = state
        self._weights = given or {}
        self._known: dict[str, tuple[float, LaneOutlook]] = {}
        self._costs: dict[str, LaneCost] = {}

    async def look(self, lanes: Iterable[str]) -> None:
        """Read what is not fresh. Raises TransientError."""
        now = time.monotonic()
        old = [lane for lane in lanes if self._read_at(lane) <= now - _FRESH_SECONDS]
        found = await asyncio.gather(*map(self._outlook, old))
        costs = await asyncio.gather(*map(self._state.lanes.cost, old))
        self._costs |= dict(zip(old, costs, strict=True))
        self._known |= {lane: (now, outlook) for lane, outlook in zip(old, found, strict=True)}

    def predicted_cost(self, tokens: Mapping[str, TokensOfRows]) -> dict[str, int]:
        """The field `predicted_micros` of a batch with these tokens by lane, if it is known."""
        rates = {lane: self._costs.get(lane, LaneCost()).micros_per_token for lane in tokens}
        if not all(rates.values()):
            return {}
        return {
            "predicted_micros": round(sum(rates[lane] * of.tokens for lane, of in tokens.items()))
        }

    def warnings(
        self, tenant: str, endpoint: str, tokens: Mapping[str, TokensOfRows], *, expires_at: int
    ) -> list[BatchWarning]:
        """The warnings of a batch with these tokens by lane; none if it can be done in time."""
        now = time.time()
        weights_now = weights(self._state.tenants.own(), self._weights)
        ends = [
            expected_end(
                self._known[lane][1],
                tenant=tenant,
                tokens=count.tokens,
                kind=kind_of(endpoint, *count),
                expires_at=expires_at,
                weights=weights_now,
                now=now,
            )
            for lane, count in tokens.items()
            if lane in self._known
        ]
        late = max((end for end in ends if end is not None), default=0.0)
        if late <= expires_at:
            return []
        return [deadline_at_risk(late)]

    async def _outlook(self, lane: str) -> LaneOutlook:
        outlook, job, engine = await asyncio.gather(
            self._state.lanes.outlook(lane),
            self._state.lanes.job(lane),
            self._state.engines.one(lane),
        )
        return outlook._replace(starts_in=starts_in(job.to_start(), engine, now=time.time()))

    def _read_at(self, lane: str) -> float:
        at, _ = self._known.get(lane, (float("-inf"), None))
        return at
