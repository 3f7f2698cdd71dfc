"""Keeps the predicted ends of batches true while they run."""

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dispatcher.lane_outlooks import foreseen_text
from shared.openai.shapes import Predicted
from shared.ordering.outlook import BatchLoad, Forecast, Foresight
from shared.state import State
from shared.state.batches import Told
from shared.submission.predictions import of_all_lanes, predicted_of, predicted_text
from shared.submission.warnings import late_warnings
from shared.tenants import weights

#: Batches that are foreseen in one look; the others have their turn in the next ones.
_BATCHES = 200
#: A prediction that moves by less than this part of what is left, or by fewer seconds, stays.
_PART, _SECONDS = 0.05, 2.0


class _Kept(NamedTuple):
    """A forecast, and how many rows the batch still had then."""

    rows_left: int
    at: float
    forecast: Forecast

    def holds(self, load: BatchLoad) -> bool:
        """Whether nothing has happened since. What only waits depends on all others."""
        waits = not load.rows_claimed or self.forecast.starts_in > 0
        return not waits and self.rows_left == load.rows_left


class Predictions:
    """Foresees the ends of all batches that run, again and again."""

    def __init__(self, state: State, given: Mapping[str, float] | None = None) -> None:
        """`given` are the weights of tenants for which no other is set."""
        self._state = state
        self._given = given or {}
        self._kept: dict[tuple[str, str], _Kept] = {}
        self._told: dict[str, Predicted] = {}
        #: Batches whose lane already has something to learn from, besides their first forecast.
        self._later: set[str] = set()
        self._first = 0

    async def look(self) -> None:
        """Tell each batch when it will end, if that has changed. Raises TransientError."""
        await self._state.tenants.look()
        weights_now = weights(self._state.tenants.own(), self._given)
        loads: defaultdict[str, dict[str, BatchLoad]] = defaultdict(dict)
        lanes: dict[str, Foresight] = {}
        for lane in await self._state.lanes.names():
            if await self._state.lanes.active_count(lane):
                outlook = await self._state.lanes.outlook(lane)
                lanes[lane] = Foresight(outlook, weights_now)
                for batch in outlook.running:
                    if batch.rows_left:
                        loads[batch.id][lane] = batch
        self._forget_all_but(loads)
        now = time.time()
        found = [self._tell(loads[batch_id], lanes, now) for batch_id in self._next(list(loads))]
        await self._state.batches.predict([told for told in found if told is not None])

    def _next(self, batch_ids: Sequence[str]) -> Sequence[str]:
        """Those whose turn it is."""
        first = self._first if self._first < len(batch_ids) else 0
        self._first = first + _BATCHES
        return batch_ids[first : self._first]

    def _tell(
        self, loads: Mapping[str, BatchLoad], lanes: Mapping[str, Foresight], now: float
    ) -> Told | None:
        """What is to be written for a batch with these loads; None for nothing."""
        kept: dict[str, _Kept] = {}
        for lane, load in loads.items():
            one = self._foreseen(lane, load, lanes[lane], now)
            if one is None:
                return None
            kept[lane] = one
        by_lane = {
            lane: predicted_of(one.forecast, foreseen_at=one.at, now=now)
            for lane, one in kept.items()
        }
        whole = of_all_lanes(list(by_lane.values()))
        foreseen = self._to_learn_from(load, kept[lane]) if load.lanes == 1 else ""
        if whole is None or not (foreseen or _has_moved(self._told.get(load.id), whole, now)):
            return None
        self._told[load.id] = whole
        late = late_warnings(whole.finish_p80_at, expires_at=load.expires_at)
        return Told(
            load.id,
            predicted_text(by_lane),
            late[0].model_dump_json() if late else "",
            foreseen,
        )

    def _foreseen(
        self, lane: str, load: BatchLoad, foresight: Foresight, now: float
    ) -> _Kept | None:
        kept = self._kept.get((lane, load.id))
        if kept is None or not kept.holds(load):
            forecast = foresight.of(load)
            if forecast is None:
                return None
            kept = self._kept[lane, load.id] = _Kept(load.rows_left, now, forecast)
        return kept

    def _to_learn_from(self, load: BatchLoad, kept: _Kept) -> str:
        """The batch's first forecast from what it has done itself; empty if it is not new."""
        if kept.forecast.like.stage == "new" or load.id in self._later:
            return ""
        self._later.add(load.id)
        return foreseen_text(kept.forecast, kept.at)

    def _forget_all_but(self, running: Mapping[str, object]) -> None:
        self._kept = {key: kept for key, kept in self._kept.items() if key[1] in running}
        self._told = {id_: told for id_, told in self._told.items() if id_ in running}
        self._later &= running.keys()


def _has_moved(told: Predicted | None, new: Predicted, now: float) -> bool:
    """Whether the prediction says something else than the one that was told."""
    if told is None or told.rests_on.pace != new.rests_on.pace:
        return True
    return any(
        abs(after - before) > max(_SECONDS, _PART * (after - now))
        for before, after in (
            (told.finish_at, new.finish_at),
            (told.finish_p80_at, new.finish_p80_at),
        )
    )
