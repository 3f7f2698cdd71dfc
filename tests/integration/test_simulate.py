"""The short form of the simulator: what the policy promises, on traces that take seconds."""

import pytest

from benchmarks import simulate


def test_tenants_of_equal_weight_get_equal_shares() -> None:
    shares = simulate.backlogged(7, tenants=20, seconds=60)

    assert simulate.jain(list(shares.values())) >= 0.98


@pytest.mark.parametrize(
    "trick", ["tiny batches", "high priority", "low predictions", "shared prefixes"]
)
def test_no_trick_raises_a_share(trick: str) -> None:
    shares = simulate.backlogged(7, tenants=5, seconds=40, hostile=trick)

    assert simulate.gain(shares) <= 1.05


def test_short_windows_raise_no_share() -> None:
    shares = simulate.backlogged(
        7,
        tenants=5,
        seconds=3600,
        hostile="short windows",
        model=simulate.SLOW,
        rows_per_second=1.5,
    )

    assert simulate.gain(shares) <= 1.05


def test_no_window_closes_on_an_engine_that_keeps_up() -> None:
    found = simulate.mixed(7, batches=60, tenants=20)

    assert found["deadlines_missed"] == 0


def test_grouping_by_prefix_pays_where_the_cache_holds_a_part_of_the_prefixes() -> None:
    gain = simulate.prefixes(shared=200, each=10, prefix_tokens=1000, seed=7)

    assert gain >= 1.5


def test_grouping_costs_nothing_where_nothing_is_shared() -> None:
    assert simulate.prefixes(shared=500, each=1, prefix_tokens=1000, seed=7) >= 0.97


def test_learned_lengths_shorten_a_batch() -> None:
    found = simulate.lengths(rows=1500, kinds=10, seed=7)

    assert found["gain"] >= 1.1
    assert found["last_percent"] <= 0.03
