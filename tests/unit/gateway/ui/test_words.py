import pytest

from gateway.ui.words import (
    compact,
    counted,
    duration,
    duration_range,
    event_text,
    gpu_time,
    money,
    number,
    reason_text,
    size,
    status_text,
)
from shared.bus.event_shapes import EVENT_TYPES
from shared.lifecycle import Status
from shared.slices import ReleaseReason


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.2, "less than 1 s"),
        (59, "59 s"),
        (60, "1 min"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (90_000, "1 d 1 h"),
    ],
)
def test_a_duration_has_two_units_at_most(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_range_that_reads_alike_is_one_time() -> None:
    assert duration_range(300, 310) == "about 5 min"
    assert duration_range(300, 600) == "5 min to 10 min"


def test_a_cost_is_told_in_gpu_time_and_money() -> None:
    assert [gpu_time(one) for one in (0, 0.34, 59, 3725)] == ["0 s", "0.3 s", "59.0 s", "1 h 2 min"]
    assert [money(one, "eur") for one in (0.0289, 1234.5)] == ["0.0289 EUR", "1,234.50 EUR"]


def test_amounts_have_no_digits_that_say_nothing() -> None:
    assert [number(one) for one in (0, 3, 3.27, 12.7, 12_345)] == ["0", "3", "3.3", "13", "12,345"]
    assert [compact(one) for one in (7, 1200, 34_000, 5_600_000)] == ["7", "1.2 k", "34 k", "5.6 M"]
    assert [size(one) for one in (9, 2048, 50 * 2**20)] == ["9 B", "2.0 KiB", "50 MiB"]


def test_a_count_agrees_with_what_it_counts() -> None:
    found = [counted(one, "batch") for one in (0, 1, 2)]

    assert [*found, counted(1200, "slice")] == ["0 batches", "1 batch", "2 batches", "1,200 slices"]


def test_every_status_event_and_reason_has_words() -> None:
    assert len({status_text(status) for status in Status}) == len(Status)
    assert status_text(Status.IN_PROGRESS, is_paused=True) == "Paused"
    told = [name for name in EVENT_TYPES if name not in {"batch.progress", "slice.committed"}]
    assert [name for name in told if event_text(name) == name] == []
    unknown = reason_text(None)
    assert [reason for reason in ReleaseReason if reason_text(reason) == unknown] == []
