from shared.ordering.deadlines import BLIND_SECONDS, Deadline, urgent

NOW = 1_000_000.0


def found(*batches: tuple[str, float, float], rate: float = 1.0) -> list[str]:
    deadlines = [Deadline(name, NOW + seconds, tokens) for name, seconds, tokens in batches]
    return urgent(deadlines, now=NOW, tokens_per_second=rate)


def test_a_batch_with_time_to_spare_is_not_urgent() -> None:
    assert found(("a", 1000, 500)) == []


def test_a_batch_whose_work_only_just_fits_is_urgent() -> None:
    assert found(("a", 1000, 900)) == ["a"]


def test_what_is_due_earlier_is_urgent_with_what_it_would_delay() -> None:
    assert found(("late", 1000, 500), ("early", 900, 450), ("calm", 90_000, 10)) == [
        "early",
        "late",
    ]


def test_without_a_rate_what_is_nearly_due_is_urgent() -> None:
    assert found(("a", BLIND_SECONDS, 1), ("b", BLIND_SECONDS + 1, 1e9), rate=0) == ["a"]
