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


def test_a_tenant_counts_on_its_share_of_the_rate_only() -> None:
    alone = Deadline("a", NOW + 1000, 500, "acme")
    other = Deadline("b", NOW + 90_000, 1, "other")

    assert urgent([alone], now=NOW, tokens_per_second=1.0) == []
    assert urgent([alone, other], now=NOW, tokens_per_second=1.0) == ["a"]
    heavy = [alone._replace(weight=9.0), other]
    assert urgent(heavy, now=NOW, tokens_per_second=1.0) == []


def test_the_work_of_one_tenant_makes_no_batch_of_another_urgent() -> None:
    late = [Deadline(f"late-{n}", NOW + 900, 500, "acme") for n in range(5)]
    calm = Deadline("calm", NOW + 2000, 100, "other")

    assert "calm" not in urgent([*late, calm], now=NOW, tokens_per_second=1.0)
