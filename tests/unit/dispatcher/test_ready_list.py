import pytest

from dispatcher.ready_list import (
    MAX_READY,
    LaneNow,
    exhausted,
    ready_list,
    slices_per_batch,
)
from shared.slices import ReadySlice

NOW = 1_000_000.0


def slice_of(batch: str, index: int = 0, **changes: object) -> ReadySlice:
    fields: dict[str, object] = {
        "batch_id": batch,
        "index": index,
        "tenant": "acme",
        "priority": 5,
        "created_at": int(NOW),
        "expires_at": int(NOW) + 86_400,
        "tokens": 1000,
        "rows": 10,
        "is_ready": False,
    }
    return ReadySlice(**{**fields, **changes})  # type: ignore[arg-type]


def ordered(
    *slices: ReadySlice,
    served: dict[str, float] | None = None,
    weights: dict[str, float] | None = None,
    rate: float = 0.0,
    rows: int = 1000,
) -> list[str]:
    lane = LaneNow(served or {}, weights or {}, rate)
    return [chosen.member for chosen in ready_list(slices, lane, now=NOW, rows=rows)]


def test_a_small_batch_goes_before_the_rest_of_a_large_one_that_runs() -> None:
    large = [
        slice_of("large", index, created_at=int(NOW) - 5000, claimed_at=int(NOW) - 1)
        for index in range(3, 6)
    ]

    assert ordered(*large, slice_of("small"))[0] == "small:0"


def test_slices_of_a_tenant_that_is_held_wait_and_others_go_on() -> None:
    slices = [slice_of("held"), slice_of("other", tenant="globex")]
    lane = LaneNow({}, {}, 0.0, frozenset({"acme"}))

    assert [one.member for one in ready_list(slices, lane, now=NOW, rows=99)] == ["other:0"]
    assert exhausted(slices, slices[1:], depth=1)[0] == ["other"]


def test_a_batch_whose_rows_hardly_fit_before_its_deadline_goes_first() -> None:
    """A slice of 10 rows has 1,000 tokens, so 1,000 rows take 1,000 seconds."""
    late = slice_of("late", 7, expires_at=int(NOW) + 1100, priority=0, rows_left=1000)
    calm = slice_of("calm", priority=9, rows_left=10)

    assert ordered(calm, late, rate=100.0) == ["late:7", "calm:0"]
    assert ordered(calm, late, rate=1000.0) == ["calm:0", "late:7"]


def test_a_tenant_whose_batches_are_all_nearly_due_gets_no_more_than_its_share() -> None:
    hasty = [
        slice_of(f"hasty-{n % 5}", n, tenant="hasty", expires_at=int(NOW) + 800) for n in range(40)
    ]
    calm = [slice_of("calm", n, tenant="calm") for n in range(40)]

    for rate in (0.0, 100.0):
        first = ordered(*hasty, *calm, rate=rate)[:20]
        assert 8 <= sum(member.startswith("calm") for member in first) <= 12


def test_tenants_take_turns_in_tokens_not_in_slices() -> None:
    heavy = [slice_of("heavy", index, tenant="heavy", tokens=3000) for index in range(2)]
    light = [slice_of("light", index, tenant="light", tokens=1000) for index in range(4)]

    assert ordered(*heavy, *light) == [
        "heavy:0",
        "light:0",
        "light:1",
        "light:2",
        "heavy:1",
        "light:3",
    ]


def test_a_tenant_that_was_given_more_waits_for_the_others() -> None:
    slices = [slice_of("a", tenant="a"), slice_of("b", tenant="b")]

    assert ordered(*slices, served={"a": 5000, "b": 0}) == ["b:0", "a:0"]


def test_a_tenant_with_a_weight_gets_that_many_times_the_tokens() -> None:
    slices = [slice_of(name, n, tenant=name) for n in range(12) for name in ("one", "three")]

    first = ordered(*slices, weights={"three": 3.0})[:12]

    assert sum(member.startswith("three") for member in first) == 9


def test_higher_priority_goes_first_within_a_tenant() -> None:
    assert ordered(slice_of("low", priority=1), slice_of("high", priority=9)) == [
        "high:0",
        "low:0",
    ]


def test_the_list_is_kept_short() -> None:
    many = [slice_of("large", index) for index in range(50)]

    assert len(ordered(*many, rows=100)) == 10
    assert len(ordered(*many, *(slice_of("b", n) for n in range(99)), rows=10**6)) == MAX_READY


def test_slices_of_one_batch_keep_their_order() -> None:
    assert ordered(*[slice_of("a", index) for index in (2, 0, 1)]) == ["a:0", "a:1", "a:2"]


def test_what_is_more_urgent_takes_the_place_of_what_is_ready() -> None:
    ready = [slice_of("old", n, is_ready=True, rows=500) for n in range(2)]
    late = slice_of("late", expires_at=int(NOW) + 60, rows=500)

    assert ordered(*ready, late) == ["late:0", "old:0"]


def test_a_list_to_which_nothing_comes_keeps_its_order() -> None:
    slices = [slice_of(batch, n, is_ready=True) for n in range(3) for batch in ("a", "b")]
    by_member = {slice_.member: slice_ for slice_ in slices}

    once = ordered(*slices)

    assert ordered(*(by_member[member] for member in once)) == once


def test_more_is_read_of_batches_that_could_have_filled_more_of_the_list() -> None:
    slices = [slice_of("high", n) for n in range(2)] + [slice_of("low", n) for n in range(2)]

    assert exhausted(slices, slices[:3], depth=2) == (["high"], 8)
    assert exhausted(slices, slices[:3], depth=MAX_READY)[0] == []


def test_a_batch_without_further_slices_is_not_read_again() -> None:
    slices = [slice_of("small", 0), *(slice_of("large", n) for n in range(2))]

    assert exhausted(slices, slices[:2], depth=2)[0] == []


@pytest.mark.parametrize(("batches", "wanted"), [(1, 100), (10, 10), (500, 2)])
def test_a_few_slices_of_each_batch_are_read_if_there_are_many(batches: int, wanted: int) -> None:
    assert slices_per_batch(batches) == wanted
