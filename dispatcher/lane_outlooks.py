"""What new batches have to expect of lanes."""

import asyncio
import time
from collections.abc import Iterable, Mapping

import msgspec

from shared.openai.shapes import BatchWarning
from shared.ordering.outlook import Forecast, Foreseen, Foresight, new_load
from shared.ordering.pace import TokensOfRows
from shared.state import State
from shared.state.lanes import LaneCost
from shared.submission.predictions import predicted_of, predicted_text
from shared.submission.warnings import late_warnings
from shared.tenants import weights

#: Batches that are planned one after the other share a look.
_FRESH_SECONDS = 2.0


class LaneOutlooks:
    """The outlooks of lanes, read at most once in two seconds each."""

    def __init__(self, state: State, given: Mapping[str, float] | None = None) -> None:
        """`given` are the weights of tenants for which no other is set."""
        self._state = state
        self._given = given or {}
        self._known: dict[str, tuple[float, Foresight]] = {}
        self._costs: dict[str, LaneCost] = {}

    async def look(self, lanes: Iterable[str]) -> None:
        """Read what is not fresh. Raises TransientError."""
        now = time.monotonic()
        old = [lane for lane in lanes if self._read_at(lane) <= now - _FRESH_SECONDS]
        found = await asyncio.gather(*map(self._state.lanes.outlook, old))
        costs = await asyncio.gather(*map(self._state.lanes.cost, old))
        weights_now = weights(self._state.tenants.own(), self._given)
        self._costs |= dict(zip(old, costs, strict=True))
        self._known |= {
            lane: (now, Foresight(outlook, weights_now))
            for lane, outlook in zip(old, found, strict=True)
        }

    def predicted_cost(self, tokens: Mapping[str, TokensOfRows]) -> dict[str, int]:
        """The field `predicted_micros` of a batch with these tokens by lane, if it is known."""
        rates = {lane: self._costs.get(lane, LaneCost()).micros_per_token for lane in tokens}
        if not all(rates.values()):
            return {}
        micros = sum(rates[lane] * of.tokens for lane, of in tokens.items())
        return {"predicted_micros": round(micros)}

    def predicted_end(
        self,
        tenant: str,
        endpoint: str,
        tokens: Mapping[str, TokensOfRows],
        *,
        priority: int,
        expires_at: int,
    ) -> tuple[dict[str, str], list[BatchWarning]]:
        """What a batch with these tokens by lane is told of its end; nothing if nobody knows.

        That is its field `predicted`, the field `foreseen`, which its lane learns from, and that
        it may be late.
        """
        now = time.time()
        found: dict[str, Forecast] = {}
        for lane, what in tokens.items():
            load = new_load(tenant, endpoint, what, priority=priority)
            forecast = self._known[lane][1].of(load) if lane in self._known else None
            if forecast is None:
                return {}, []
            found[lane] = forecast
        told = {lane: predicted_of(one, foreseen_at=now, now=now) for lane, one in found.items()}
        if not told:
            return {}, []
        fields = {"predicted": predicted_text(told)}
        if len(found) == 1:
            [one] = found.values()
            fields["foreseen"] = foreseen_text(one, now)
        late = max(one.finish_p80_at for one in told.values())
        return fields, late_warnings(late, expires_at=expires_at)

    def _read_at(self, lane: str) -> float:
        at, _ = self._known.get(lane, (float("-inf"), None))
        return at


def foreseen_text(forecast: Forecast, at: float) -> str:
    """What a batch keeps of its forecast until it ends."""
    left = forecast.after()
    found = Foreseen(forecast.like, at, forecast.starts_in, at + left.middle, at + left.late)
    return msgspec.json.encode(found).decode()
