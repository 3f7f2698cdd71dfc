"""The short form of the simulator: what the policy promises, on traces that take seconds."""

import itertools
import math
import random
from collections.abc import Sequence

import pytest

from benchmarks import simulate
from benchmarks.simulated_fleet import DAY, Batch, EngineModel, Fleet, Row
from shared.ordering.deadlines import SLACK_RATIO, SLACK_SECONDS


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


#: One row at a time, a token a second.
_ONE_BY_ONE = EngineModel(
    seats=1, kv_tokens=100_000, prefill_tokens_per_second=1e9, step_seconds=1.0, row_seconds=0.0
)
#: Rows that batches of which little runs may have in front of any engine.
_CLAIMED = 512.0


def _cases(seed: int, *, tenants: int = 1) -> list[Batch]:
    """Up to six batches of rows of a few seconds, whose windows close about when all could end."""
    dice = random.Random(seed)
    batches = []
    for number in range(dice.randint(3, 6)):
        seconds = [dice.randint(2, 10) for _ in range(dice.randint(5, 60))]
        batches.append(
            Batch(
                id=f"b{number}",
                tenant=f"t{number % tenants}",
                arrives=0.0,
                rows=[Row(number, 0, 1, one) for one in seconds],
                window=dice.uniform(100, 1500) * tenants,
                priority=dice.randint(1, 9),
            )
        )
    return batches


def _can_all_be_met(batches: Sequence[Batch], *, share: float = 1.0) -> bool:
    """Whether any order of these batches ends each of them before its window closes.

    A tenth of the time and the time of a few rows stay free, as the policy promises no more.
    """
    work = {batch.id: math.fsum(row.output_tokens for row in batch.rows) for batch in batches}
    for order in itertools.permutations(batches):
        ends = itertools.accumulate(work[batch.id] / share for batch in order)
        if all(
            end * (1 + SLACK_RATIO) + SLACK_SECONDS <= batch.window
            for batch, end in zip(order, ends, strict=True)
        ):
            return True
    return False


def _missed(batches: Sequence[Batch]) -> list[str]:
    Fleet(_ONE_BY_ONE, claimed=_CLAIMED).run(batches)
    return [batch.id for batch in batches if batch.ended > batch.deadline]


def test_no_window_closes_that_any_order_of_batches_would_have_kept() -> None:
    cases = [case for seed in range(200) if _can_all_be_met(case := _cases(seed))]

    assert len(cases) > 30
    assert [missed for case in cases if (missed := _missed(case))] == []


def test_tenants_keep_all_windows_that_any_order_within_their_shares_keeps() -> None:
    cases = []
    for seed in range(200):
        case = _cases(seed, tenants=2)
        each = [[batch for batch in case if batch.tenant == one] for one in ("t0", "t1")]
        if all(_can_all_be_met(some, share=0.5) for some in each):
            cases.append(case)

    assert len(cases) > 30
    assert [missed for case in cases if (missed := _missed(case))] == []


def test_without_regard_to_windows_some_would_have_closed() -> None:
    """The cases are hard enough to tell a policy from none."""
    cases = [case for seed in range(200) if _can_all_be_met(case := _cases(seed))]

    def missed(batches: Sequence[Batch]) -> int:
        for batch in batches:
            batch.window += DAY
        Fleet(_ONE_BY_ONE, claimed=_CLAIMED).run(batches)
        return sum(batch.ended > batch.deadline - DAY for batch in batches)

    assert sum(map(bool, map(missed, cases))) > 10
