"""What a batch is told about its end: a range, and what the range rests on. Pure."""

import json
from collections.abc import Mapping, Sequence

from shared.openai.shapes import Predicted, RestsOn
from shared.ordering.outlook import Forecast


def predicted_of(forecast: Forecast, *, foreseen_at: float, now: float) -> Predicted:
    """What is to be told now of what was foreseen then, in Unix seconds."""
    left = forecast.after(now - foreseen_at)
    return Predicted(
        finish_at=round(now + left.middle),
        finish_p80_at=round(now + left.late),
        rests_on=RestsOn(
            pace=forecast.source,
            batches=forecast.batches,
            start_seconds=round(forecast.starts_in),
        ),
    )


def of_all_lanes(found: Sequence[Predicted]) -> Predicted | None:
    """Of a batch with several lanes, which ends when the last of them does."""
    if not found:
        return None
    last = max(found, key=lambda one: one.finish_p80_at)
    return Predicted(
        finish_at=max(one.finish_at for one in found),
        finish_p80_at=last.finish_p80_at,
        rests_on=last.rests_on,
    )


def predicted_text(by_lane: Mapping[str, Predicted]) -> str:
    """The field `predicted` of the record, as JSON; of several lanes with the ends of each."""
    whole = of_all_lanes(list(by_lane.values()))
    told = whole.model_dump(mode="json") if whole else {}
    if len(by_lane) > 1:
        ends = {lane: (one.finish_at, one.finish_p80_at) for lane, one in by_lane.items()}
        told["by_lane"] = ends
    return json.dumps(told)
