import pytest

from shared.ordering.load import load_of, rounded_rate, typical_rows


@pytest.mark.parametrize(
    ("rows", "load"),
    [
        (0, "none"),
        (1, "under 100"),
        (99, "under 100"),
        (100, "under 1,000"),
        (9_999, "under 10,000"),
        (999_999, "under 1,000,000"),
        (10**9, "1,000,000 or more"),
    ],
)
def test_rows_fall_into_classes(rows: int, load: str) -> None:
    assert load_of(rows) == load


@pytest.mark.parametrize("rows", [0, 1, 99, 100, 5_000, 99_999, 10**9])
def test_the_number_that_stands_for_a_class_is_in_it(rows: int) -> None:
    load = load_of(rows)

    assert load_of(typical_rows(load)) == load


@pytest.mark.parametrize(
    ("rate", "rounded"),
    [(0, 0), (-1, 0), (0.0034, 0.002), (0.5, 0.5), (1, 1), (2.3, 2), (4.99, 2), (79, 50)],
)
def test_rates_are_rounded_down_to_one_two_or_five(rate: float, rounded: float) -> None:
    assert rounded_rate(rate) == rounded
