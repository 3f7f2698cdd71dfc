from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from shared.ordering.outlook import (
    BatchLoad,
    Ended,
    Forecast,
    Foreseen,
    Foresight,
    LaneOutlook,
    Likeness,
    Range,
    new_load,
)
from shared.ordering.pace import Done, Pace, TokensOfRows
from shared.ordering.tenant_usage import TenantKind, TenantUsage
from shared.rows_in_engine import RowsInEngine

CHAT = "/v1/chat/completions"
#: A hundred tokens a second, ten of them a row.
PACE = Pace().learn({f"{CHAT} 1": Done(100, 1000, 1000)}, 10.0)
LIKE = Likeness("acme", "new", 10.0, 0.9, 0.0, 1.0, 100)


def load(rows: int = 100, tenant: str = "acme", **changes: Any) -> BatchLoad:
    """A batch of which nothing has run, with ten tokens in a row."""
    new = new_load(tenant, CHAT, TokensOfRows(10 * rows, rows))
    return new._replace(**{"id": f"{tenant}-{rows}", **changes})


@dataclass
class Lane:
    """A lane with one seat, so that a row is in the engine for a tenth of a second."""

    running: list[BatchLoad] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    weights: dict[str, float] = field(default_factory=dict)
    pace: Pace = PACE
    starts_in: float = 0.0
    seats: int = 1
    usages: dict[TenantKind, TenantUsage] = field(default_factory=dict)

    def of(self, batch: BatchLoad) -> Forecast:
        outlook = LaneOutlook(
            self.pace, self.seats, self.running, self.ended, self.starts_in, self.usages
        )
        found = Foresight(outlook, self.weights).of(batch)
        assert found is not None
        return found

    def counted(self, batch: BatchLoad) -> float:
        """Without the tenth of a second."""
        return round(self.of(batch).like.counted - 0.1, 1)


def test_alone_a_batch_takes_what_its_tokens_take() -> None:
    assert Lane().counted(load()) == 10
    assert Lane().of(load()).after().middle == pytest.approx(10.1, abs=0.1)


def test_without_a_pace_nothing_is_known() -> None:
    assert Foresight(LaneOutlook(running=[load()]), {}).of(load()) is None


def test_batches_of_its_tenant_take_turns_with_it() -> None:
    assert Lane([load(5, id="small")]).counted(load()) == 10.5
    assert Lane([load(10_000, id="giant")]).counted(load()) == 20


def test_of_its_tenants_batches_those_of_a_higher_priority_go_first() -> None:
    assert Lane([load(300, id="high", priority=6)]).counted(load()) == 40
    assert Lane([load(300, id="low", priority=4)]).counted(load()) == 10


def test_beside_a_giant_of_another_tenant_it_has_its_share() -> None:
    giant = load(10**6, "other")

    assert Lane([giant]).counted(load()) == 20
    assert Lane([giant], weights={"acme": 2.0}).counted(load()) == 15
    assert Lane([giant], weights={"other": 2.0}).counted(load()) == 30


def test_others_that_have_little_take_little() -> None:
    assert 1000 < Lane([load(100, "other")]).counted(load(10_000)) <= 1015


def test_a_batch_does_not_wait_for_itself() -> None:
    batch = load(id="itself")

    assert Lane([batch]).of(batch) == Lane().of(batch)


def test_what_its_own_rows_took_counts_before_what_was_predicted() -> None:
    half = load(rows_left=50, used=1500.0)

    assert Lane().counted(half._replace(rows_claimed=0)) == pytest.approx(15, rel=0.05)
    assert (Lane().of(half).source, Lane().of(load()).source) == ("batch", "kind")


def usage(tenant: str, *sums: float) -> dict[TenantKind, TenantUsage]:
    """What rows of this tenant took."""
    return {TenantKind(f"{CHAT} 1", tenant): TenantUsage(*sums)}


def test_what_its_tenants_rows_took_counts_before_what_all_rows_took() -> None:
    usages = usage("acme", 1000, 10_000, 2000, 3000)

    assert Lane(usages=usages).counted(load()) == pytest.approx(5, rel=0.05)
    assert Lane(usages=usages).counted(load(tenant="other")) == 10


def test_the_work_of_others_is_what_rows_of_their_tenants_take() -> None:
    known = Lane([load(64, "other")], usages=usage("other", 1000, 10_000, 500, 500))

    assert known.counted(load()) < 12 < Lane([load(64, "other")]).counted(load())


def stay(batch: BatchLoad, *sums: float) -> float:
    """Seconds that the longest row is in an engine with ten seats."""
    like = Lane(seats=10, usages=usage("acme", *sums)).of(batch).like
    return round((1 - like.queued) * like.counted, 2)


def test_the_longest_of_many_answers_is_longer_than_their_average() -> None:
    """A token of an answer takes two tenths of a second: half of a hundred a second are prompts."""
    sums = (10**6, 10**7, 10**7 / 4, 10**7 / 4)

    assert stay(load(1), *sums) == pytest.approx(0.5, abs=0.02)
    assert stay(load(2), *sums) == pytest.approx(0.75, abs=0.02)


def test_no_answer_is_longer_than_its_limit() -> None:
    """Of ten predicted tokens two are of the prompt; the engine makes 75 of answers a second."""
    sums = (10**6, 10**7, 2 * 10**6, 6 * 10**6)

    assert stay(load(1000), *sums) == pytest.approx(8 * 10 / 75, abs=0.02)


def test_rows_without_answers_stay_as_long_as_their_tokens_take() -> None:
    assert stay(load(1000), 10**6, 10**7, 10**7, 0) == pytest.approx(1.0, abs=0.02)


def test_of_rows_that_are_on_their_way_half_the_work_is_done() -> None:
    waiting, under_way = (load(rows_left=50, used=500.0, rows_claimed=n) for n in (0, 50))

    assert Lane().counted(under_way) == pytest.approx(Lane().counted(waiting) / 2, rel=0.01)


#: Rows of the tenant `acme` have an answer of five tokens, without any of a prompt.
ANSWERS = usage("acme", 10**6, 10**7, 0, 5 * 10**6)


def test_rows_that_the_engine_has_answered_are_no_work() -> None:
    """A hundred rows are left, of which sixty are answered, and none is in the engine."""
    batch = load(200, rows_left=100, used=500.0)
    told = batch._replace(in_engine=RowsInEngine(160, 160 * 5))
    lane = Lane(usages=ANSWERS)

    assert told.rows_open == 40
    work = [like.queued * like.counted for like in (lane.of(batch).like, lane.of(told).like)]
    assert work[1] == pytest.approx(0.4 * work[0], rel=0.05)


def test_rows_of_others_that_the_engine_has_answered_are_no_work() -> None:
    other = load(200, "other", rows_left=100)
    told = other._replace(in_engine=RowsInEngine(160, 160 * 10))

    assert Lane([told]).counted(load()) < Lane([other]).counted(load())


def test_results_that_an_engine_does_not_know_count_all_the_same() -> None:
    """It has started since, or another one has had the rows."""
    assert load(rows_left=60, in_engine=RowsInEngine(5, 50)).rows_open == 60


def test_what_an_engine_has_inside_is_not_answered() -> None:
    """A row may be answered several times, because an answer did not fit."""
    assert load(rows_left=60, in_engine=RowsInEngine(130, 50, inside=10)).rows_open == 10


def stay_of_last(made: int, inside: int) -> float:
    """Seconds until the last row has left an engine with a hundred seats; no row waits."""
    batch = load(rows_left=50, used=250.0)
    batch = batch._replace(in_engine=RowsInEngine(100 - inside, 450, inside, made * inside))
    like = Lane(seats=100, usages=ANSWERS).of(batch).like
    assert like.waiting == like.queued == 0
    return like.counted


def test_when_all_rows_have_begun_the_longest_is_in_the_engine_for_its_limit_at_most() -> None:
    """An answer has ten tokens at most, of which each takes a second here."""
    assert stay_of_last(made=8, inside=10) == pytest.approx(2, abs=0.1)
    assert stay_of_last(made=6, inside=10) == pytest.approx(4, abs=0.1)


def test_when_all_rows_have_begun_the_last_of_few_is_soon_done() -> None:
    assert stay_of_last(made=1, inside=1) < stay_of_last(made=1, inside=3)


def test_an_answer_that_is_longer_than_its_limit_does_not_end_before_now() -> None:
    assert stay_of_last(made=50, inside=2) == pytest.approx(1, abs=0.1)


def test_the_last_answers_still_have_to_be_stored() -> None:
    batch = load(rows_left=50, used=250.0, in_engine=RowsInEngine(100, 500))

    assert Lane(usages=ANSWERS).of(batch).like.counted == pytest.approx(0.5, abs=0.01)


def test_the_pace_of_its_own_kind_counts() -> None:
    """The lane's rate says nothing of embeddings, which take a hundredth of the time here."""
    pace = PACE.learn({"/v1/embeddings 1": Done(1000, 10_000, 10_000)}, 1.0)
    batch = new_load("acme", "/v1/embeddings", TokensOfRows(10_000, 1000))

    found = Lane(pace=pace).of(batch)

    assert found.like.counted < 3
    assert Lane().of(batch).source == "lane"


def test_the_start_of_the_engine_counts() -> None:
    cold, warm = Lane(starts_in=90.0).of(load()), Lane().of(load())

    assert cold.after() == tuple(90 + end for end in warm.after())
    assert cold.starts_in == 90


def test_what_is_learned_from_a_start_is_not_the_start() -> None:
    assert Foreseen(LIKE, at=1000, starts_in=90).ended(1100).took == 10


def test_half_of_the_batches_like_it_ended_before_the_middle_and_four_of_five_before_the_end() -> (
    None
):
    ended = [Ended(LIKE, 10.0 * (1 + number / 10)) for number in range(19)]

    found = Lane(ended=ended).of(load())

    counted = found.like.counted
    assert found.after() == pytest.approx((1.9 * counted, 2.5 * counted))
    assert found.batches == 19


def test_those_that_were_foreseen_most_like_it_decide() -> None:
    own = [Ended(LIKE, 30.0)] * 19
    strangers = [Ended(LIKE._replace(tenant="other"), 10.0)] * 100
    large = [Ended(LIKE._replace(counted=1000.0), 1000.0)] * 100

    found = Lane(ended=[*own, *strangers, *large]).of(load())

    assert found.after().middle == pytest.approx(3 * found.like.counted)


def test_forecasts_of_another_stage_say_nothing() -> None:
    later = [Ended(LIKE._replace(stage="running"), 100.0)] * 50

    assert Lane(ended=later).of(load()) == Lane().of(load())


ENDS = st.lists(st.floats(0.1, 1e6), min_size=1, max_size=19).map(lambda ends: tuple(sorted(ends)))


@given(ends=ENDS, times=st.lists(st.floats(0, 2e6), min_size=2, max_size=9).map(sorted))
def test_while_nothing_happens_the_predicted_end_only_moves_back_and_never_jumps(
    ends: tuple[float, ...], times: list[float]
) -> None:
    forecast = Forecast(ends, LIKE, 0.0, "kind", len(ends))
    told = [forecast.after(at) for at in times]

    finishes = [Range(at + one.middle, at + one.late) for at, one in zip(times, told, strict=True)]

    for before, after in pairwise(finishes):
        assert after.middle >= before.middle - 1e-6 * before.middle
        assert after.late >= before.late - 1e-6 * before.late
    # It stays among the ends that were foreseen, or is less than twice the time so far.
    for at, one in zip(times, finishes, strict=True):
        assert one.late <= max(ends[-1], 1.7 * at) + 1e-6
    assert all(0 <= one.middle <= one.late for one in told)


LOADS = st.builds(
    lambda rows, done, tenant, priority, number: load(
        rows,
        tenant,
        id=str(number),
        priority=priority,
        rows_left=rows - int(done * rows),
        used=12.0 * int(done * rows),
    ),
    st.integers(1, 10_000),
    st.floats(0, 0.9),
    st.sampled_from(["acme", "b", "c"]),
    st.integers(0, 9),
    st.integers(0, 10**9),
)


@given(running=st.lists(LOADS, max_size=12), batch=LOADS, more=LOADS)
def test_more_work_of_anybody_never_makes_a_batch_earlier(
    running: list[BatchLoad], batch: BatchLoad, more: BatchLoad
) -> None:
    # What the lane knows of the batch itself is no more work.
    assume(more.id != batch.id)

    before, after = (Lane(some).of(batch).like for some in (running, [*running, more]))

    assert after.counted >= before.counted * (1 - 1e-9)


@given(running=st.lists(LOADS, max_size=12), batch=LOADS, part=st.floats(0.01, 1))
def test_less_left_of_a_batch_never_makes_it_later(
    running: list[BatchLoad], batch: BatchLoad, part: float
) -> None:
    smaller = new_load(
        batch.tenant, CHAT, TokensOfRows(int(part * batch.tokens), batch.rows)
    )._replace(priority=batch.priority)
    larger = new_load(batch.tenant, CHAT, TokensOfRows(int(batch.tokens), batch.rows))._replace(
        priority=batch.priority, kind=smaller.kind
    )

    assert Lane(running).of(smaller).like.counted <= Lane(running).of(larger).like.counted + 1e-9


@given(rows=st.integers(410, 810), batch=LOADS)
def test_no_tenant_can_measure_another_by_what_it_is_told(rows: int, batch: BatchLoad) -> None:
    """Loads within one step of a factor of two look alike."""
    mine = batch._replace(tenant="acme")

    assert Lane([load(rows, "other")]).of(mine) == Lane([load(410, "other")]).of(mine)
