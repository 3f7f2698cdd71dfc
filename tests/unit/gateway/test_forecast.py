from gateway.forecast import LaneForecast, combined, lane_forecast
from shared.openai.shapes import Predicted, RestsOn


def _predicted(finish_at: int, finish_p80_at: int) -> Predicted:
    basis = RestsOn(pace="kind", batches=finish_at % 19, start_seconds=0)
    return Predicted(finish_at=finish_at, finish_p80_at=finish_p80_at, rests_on=basis)


def _forecast(predicted: Predicted | None = None, **changes: float) -> LaneForecast:
    given = {"own_ahead": 40, "others_ahead": 0, "rate": 2.0, **changes}
    return lane_forecast("m@p", 2, predicted, **given)  # type: ignore[arg-type]


def test_loads_and_rates_of_one_class_are_not_told_apart() -> None:
    assert _forecast(others_ahead=101, rate=2.0) == _forecast(others_ahead=999, rate=4.9)


def test_without_a_prediction_there_is_no_end() -> None:
    found = _forecast(rate=0)

    assert (found.finish_at, found.finish_p80_at, found.rests_on) == (None, None, None)
    assert found.rows_per_second is None


def test_a_batch_is_done_when_its_last_lane_is() -> None:
    first, last = _predicted(1050, 1500), _predicted(1171, 1300)

    whole = combined([_forecast(first), _forecast(last, others_ahead=500)])

    assert whole is not None
    assert (1171, 1500, first.rests_on, 80, "under 1,000", None) == (
        whole.finish_at,
        whole.finish_p80_at,
        whole.rests_on,
        whole.rows_ahead,
        whole.others,
        whole.rows_per_second,
    )
    assert combined([]) is None


def test_if_the_end_on_one_lane_is_unknown_that_of_the_batch_is() -> None:
    whole = combined([_forecast(_predicted(1050, 1500)), _forecast()])

    assert whole is not None
    assert whole.finish_at is None


def test_the_pace_of_such_rows_counts_before_the_rate_of_the_lane() -> None:
    assert _forecast(own_rate=23.4567).rows_per_second == 23
