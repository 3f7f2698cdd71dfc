import pytest

from cli.client.words import bytes_text, duration_text, eta_text, rate_text, rows_text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (45, "45 s"), (119, "119 s"), (180, "3 min"), (7200, "2 h"), (200_000, "2 d")],
)
def test_a_duration_has_one_unit(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0, 3, "a few seconds left"),
        (20, 40, "20 to 40 s left"),
        (240, 400, "4 to 7 min left"),
        (290, 300, "about 5 min left"),
        (90, 600, "90 s to 10 min left"),
        (0, 90, "1 to 90 s left"),
    ],
)
def test_an_eta_is_a_range(low: float, high: float, text: str) -> None:
    assert eta_text(low, high) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1536, "1.5 KiB"), (200 * 2**20, "200.0 MiB")],
)
def test_sizes_have_the_unit_that_fits(count: int, text: str) -> None:
    assert bytes_text(count) == text


def test_rates_are_whole_where_it_does_not_matter() -> None:
    assert [rate_text(0.5), rate_text(1234.5)] == ["0.5 rows/s", "1,234 rows/s"]


def test_rows_are_unknown_until_the_input_was_read() -> None:
    counts = {"total": 0, "completed": 0, "failed": 0}

    assert rows_text({"request_counts": counts}) == "-"
    assert rows_text({"request_counts": {"total": 9, "completed": 2, "failed": 1}}) == "3/9"
