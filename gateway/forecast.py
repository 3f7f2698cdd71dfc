"""When a batch would be done if it were created now. Pure.

A lane's load is known exactly only as far as it is the tenant's own: a forecast sees the others as
a class, so that no tenant can measure another. What is known of the engine by kind of row tells
nothing of others; the rate of the whole lane, which does, is rounded.
"""

from collections.abc import Iterable, Mapping

from pydantic import BaseModel, ConfigDict, Field

from shared.openai.shapes import Amount, Predicted, RestsOn
from shared.ordering.load import Load, load_of, rounded_rate, typical_rows
from shared.spent import Prices, money
from shared.submission.predictions import of_all_lanes


class _Shape(BaseModel):
    model_config = ConfigDict(frozen=True)


class PredictedCost(_Shape):
    """What the batch would cost, as its lanes' work so far makes it likely."""

    gpu_seconds: float
    amount: Amount | None = Field(description="Null if a lane's pool has no price.")
    typical_error: float | None = Field(
        description="How far such predictions were off lately, as a part of the real cost: 0.2 for "
        "a fifth more or less. Null before a batch with a prediction has ended."
    )


class Forecast(_Shape):
    """When a batch of these rows would be done if it were created now."""

    finish_at: int | None = Field(
        description="Unix seconds: half of such batches have ended by then (P50). Null if the "
        "lane's pace is not known."
    )
    finish_p80_at: int | None = Field(
        description="Unix seconds: four of five such batches have ended by then (P80)."
    )
    rests_on: RestsOn | None
    rows_ahead: int = Field(
        description="Rows of your own running batches on the lane that have no result yet."
    )
    others: Load = Field(
        description="Rows of other tenants on the lane that have no result yet, as a class."
    )
    rows_per_second: float | None = Field(
        description="The rate at which the lane's engine runs such rows, as far as it is known; "
        "otherwise its last measured rate, rounded down to 1, 2 or 5 times a power of ten."
    )


class LaneForecast(Forecast):
    """What one of several lanes would have of the batch."""

    name: str
    rows: int


def lane_forecast(
    lane: str,
    rows: int,
    predicted: Predicted | None,
    *,
    own_ahead: int,
    others_ahead: int,
    rate: float,
    own_rate: float = 0.0,
) -> LaneForecast:
    """The forecast for rows beside all that the lane has.

    `own_rate` is the engine's for such rows, 0 if it is not known, and `rate` the lane's.
    """
    rate = own_rate or rounded_rate(rate)
    return LaneForecast(
        name=lane,
        rows=rows,
        finish_at=predicted and predicted.finish_at,
        finish_p80_at=predicted and predicted.finish_p80_at,
        rests_on=predicted and predicted.rests_on,
        rows_ahead=own_ahead,
        others=load_of(others_ahead),
        rows_per_second=float(f"{rate:.2g}") or None,
    )


def predicted_cost(
    tokens: Mapping[str, int],
    micros_per_token: Mapping[str, float],
    errors: Iterable[float | None],
    prices: Prices,
    currency: str,
) -> PredictedCost | None:
    """What these tokens would cost by lane; None where a lane has not learned it."""
    if not tokens or not all(micros_per_token.get(lane) for lane in tokens):
        return None
    spent = {lane: round(micros_per_token[lane] * count) for lane, count in tokens.items()}
    pools = {lane.rpartition("@")[2] for lane in tokens}
    amount = None
    if all(prices.get(pool) for pool in pools):
        amount = Amount(value=round(money(spent, prices), 9), currency=currency.lower())
    known = [error for error in errors if error is not None]
    return PredictedCost(
        gpu_seconds=round(sum(spent.values()) / 1e6, 6),
        amount=amount,
        typical_error=round(max(known), 3) if known else None,
    )


def combined(forecasts: list[LaneForecast]) -> Forecast | None:
    """The forecast of a whole batch: it is done when its last lane is."""
    if not forecasts:
        return None
    ends = [
        Predicted(finish_at=one.finish_at, finish_p80_at=one.finish_p80_at, rests_on=one.rests_on)
        for one in forecasts
        if one.finish_at is not None and one.finish_p80_at is not None and one.rests_on is not None
    ]
    whole = of_all_lanes(ends) if len(ends) == len(forecasts) else None
    others = sum(typical_rows(one.others) for one in forecasts)
    return Forecast(
        finish_at=whole and whole.finish_at,
        finish_p80_at=whole and whole.finish_p80_at,
        rests_on=whole and whole.rests_on,
        rows_ahead=sum(one.rows_ahead for one in forecasts),
        others=load_of(others),
        rows_per_second=forecasts[0].rows_per_second if len(forecasts) == 1 else None,
    )
