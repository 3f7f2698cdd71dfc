import pytest

from shared.ordering.outlook import BatchLoad
from worker.backlog import ReplicaRate, replicas_needed

NOW, SEATS, DAY = 1_000_000.0, 10, 86_400.0


def a_batch(tokens: float, due_in: float = DAY, *, rows: int = 100, left: int = 100) -> BatchLoad:
    return BatchLoad(
        id="b",
        tenant="acme",
        kind="",
        rows=rows,
        rows_left=left,
        rows_claimed=0,
        tokens=tokens,
        expires_at=NOW + due_in,
    )


def needed(*batches: BatchLoad, rate: float = 100.0) -> float:
    return replicas_needed(batches, tokens_per_second=rate, now=NOW, backlog_seconds=300)


def test_a_short_backlog_needs_a_part_of_a_replica() -> None:
    assert needed(a_batch(3000)) == pytest.approx(0.1)


def test_a_long_backlog_needs_so_many_that_it_is_done_in_time() -> None:
    assert needed(a_batch(60_000), a_batch(30_000)) == pytest.approx(3)


def test_rows_with_results_need_nothing() -> None:
    assert needed(a_batch(60_000, left=50)) == pytest.approx(1)


def test_a_window_that_closes_soon_needs_more() -> None:
    # 200 seconds of work are due in 160, of which a minute and a tenth stay free.
    assert needed(a_batch(20_000, due_in=170)) == pytest.approx(2)


def test_what_is_due_before_a_window_closes_counts_for_it() -> None:
    alone = needed(a_batch(10_000, due_in=280))
    assert needed(a_batch(10_000, due_in=270), a_batch(10_000, due_in=280)) > alone
    assert needed(a_batch(1000), a_batch(10_000, due_in=280)) == alone


def test_one_replica_finds_out_how_fast_it_is() -> None:
    assert needed(a_batch(1e9), rate=0.0) == 1.0


def test_the_rate_is_that_of_one_replica() -> None:
    rate = ReplicaRate(seats=SEATS)
    for second in range(0, 100, 10):
        rate.measure(200.0 * second, float(second), replicas=2, rows=5 * SEATS)

    assert rate.tokens_per_second == pytest.approx(100)


def test_a_replica_that_is_half_full_has_half_its_rate() -> None:
    rate = ReplicaRate(seats=SEATS)
    for second in range(0, 100, 10):
        rate.measure(50.0 * second, float(second), replicas=1, rows=SEATS // 2)

    assert rate.tokens_per_second == pytest.approx(100)


def test_time_without_rows_says_nothing() -> None:
    rate = ReplicaRate(seats=SEATS)
    rate.measure(0.0, 0.0, replicas=1, rows=SEATS)
    rate.measure(2000.0, 20.0, replicas=1, rows=SEATS)
    rate.skip()
    rate.measure(2000.0, 9000.0, replicas=1, rows=SEATS)

    assert rate.tokens_per_second == pytest.approx(100)


def test_a_first_moment_tells_no_rate() -> None:
    rate = ReplicaRate(seats=SEATS)
    rate.measure(0.0, 0.0, replicas=1, rows=SEATS)
    rate.measure(5000.0, 5.0, replicas=1, rows=SEATS)

    assert rate.tokens_per_second == 0.0
