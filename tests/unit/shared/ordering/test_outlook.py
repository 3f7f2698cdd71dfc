import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.ordering.outlook import LaneOutlook, RowsLeft, expected_end
from shared.ordering.pace import Done, Pace

NOW = 1_000_000.0


def end(
    *running: RowsLeft,
    tokens: int = 1000,
    rate: float = 100.0,
    expires_in: float = 900,
    weights: dict[str, float] | None = None,
) -> float | None:
    """Seconds from now; a row of the lane has 10 tokens."""
    found = expected_end(
        LaneOutlook(rate, rate / 10, running),
        tenant="acme",
        tokens=tokens,
        expires_at=NOW + expires_in,
        weights=weights or {},
        now=NOW,
    )
    return found and found - NOW


def other(rows: int, tenant: str = "other") -> RowsLeft:
    return RowsLeft(tenant, rows, NOW + 86_400)


def test_alone_a_batch_takes_what_its_tokens_take() -> None:
    assert end() == 10


def test_without_a_rate_nothing_is_known() -> None:
    assert end(rate=0) is None


def test_of_its_tenants_batches_those_that_close_earlier_go_first() -> None:
    early, late = (RowsLeft("acme", 100, NOW + seconds) for seconds in (60, 86_400))

    assert end(early) == 20
    assert end(late) == 10


def test_beside_a_giant_of_another_tenant_it_has_its_share() -> None:
    assert end(other(10**6)) == 30
    assert end(other(10**6), weights={"acme": 2.0}) == 20


def test_others_that_have_little_take_little() -> None:
    alone, beside = end(tokens=100_000), end(other(10), tokens=100_000)

    assert alone is not None
    assert beside is not None
    assert alone < beside <= alone + 5


@given(rows=st.integers(1_000, 9_999), others=st.integers(4, 100), rate=st.floats(100, 199))
def test_no_tenant_can_measure_another_by_what_it_is_told(
    rows: int, others: int, rate: float
) -> None:
    """Loads of one class, numbers of tenants of one class, and rates of one step look alike."""
    each = [other(rows // others, f"other-{n}") for n in range(others - 1)]
    each.append(other(rows - sum(one.rows for one in each), "last"))
    like = [other(1_000, f"other-{n}") for n in range(4)]

    assert end(*each, rate=rate, tokens=10) == end(*like, rate=rate, tokens=10)


def test_the_pace_of_its_own_kind_and_the_start_of_the_engine_count() -> None:
    """The lane's rate says nothing of embeddings, which take a tenth of the time here."""
    pace = Pace().learn({"chat 4": Done(100, 40_000, 40_000)}, 400.0)
    pace = pace.learn({"embeddings 4": Done(1000, 400_000, 400_000)}, 400.0)

    found = expected_end(
        LaneOutlook(100.0, 1.0, (), pace, 30.0),
        tenant="acme",
        tokens=30_000,
        kind="embeddings 4",
        expires_at=NOW + 900,
        weights={},
        now=NOW,
    )

    assert found == pytest.approx(NOW + 30 + 30, rel=0.01)
