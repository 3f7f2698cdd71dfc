from gateway.forecast import LaneForecast, combined, lane_forecast


def _forecast(**changes: float) -> LaneForecast:
    given = {"own_ahead": 40, "others_ahead": 0, "rate": 2.0, "now": 1000.0, **changes}
    return lane_forecast("m@p", 2, **given)  # type: ignore[arg-type]


def test_a_batch_comes_after_all_rows_of_its_lane() -> None:
    alone, behind = _forecast(), _forecast(others_ahead=50)

    assert (1021, 40, "none") == (alone.finish_at, alone.rows_ahead, alone.others)
    assert (1036, 40, "under 100") == (behind.finish_at, behind.rows_ahead, behind.others)


def test_loads_and_rates_of_one_class_are_not_told_apart() -> None:
    assert _forecast(others_ahead=101, rate=2.0) == _forecast(others_ahead=999, rate=4.9)


def test_without_a_rate_there_is_no_end() -> None:
    assert (None, None) == (_forecast(rate=0).finish_at, _forecast(rate=0).rows_per_second)


def test_a_batch_is_done_when_its_last_lane_is() -> None:
    whole = combined([_forecast(), _forecast(others_ahead=500)])

    assert whole is not None
    assert (1171, 80, "under 1,000", None) == (
        whole.finish_at,
        whole.rows_ahead,
        whole.others,
        whole.rows_per_second,
    )
    assert combined([]) is None


def test_the_pace_of_such_rows_and_the_start_of_the_engine_count() -> None:
    assert _forecast(own_rate=20.0, starts_in=60.0).finish_at == 1062
    assert _forecast(own_rate=23.4567).rows_per_second == 23
