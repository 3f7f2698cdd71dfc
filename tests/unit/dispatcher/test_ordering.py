from dispatcher.ordering import MAX_READY, order, ready_list
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
    *slices: ReadySlice, served: dict[str, int] | None = None, rows: int = 1000
) -> list[str]:
    return [chosen.member for chosen in order(slices, served or {}, now=NOW, rows=rows)]


def test_a_small_batch_goes_before_the_rest_of_a_large_one_that_came_first() -> None:
    large = [slice_of("large", index, created_at=int(NOW) - 5) for index in range(3, 6)]

    assert ordered(*large, slice_of("small"))[0] == "small:0"


def test_a_batch_close_to_its_deadline_goes_first() -> None:
    late = slice_of("late", 7, expires_at=int(NOW) + 60, priority=0)

    assert ordered(slice_of("a", priority=9), late)[0] == "late:7"


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


def test_a_tenant_that_was_away_does_not_get_all_that_it_never_asked_for() -> None:
    back = [slice_of("back", index, tenant="back", tokens=150_000) for index in range(4)]
    busy = [slice_of("busy", index, tenant="busy", tokens=150_000) for index in range(4)]

    chosen = ordered(*back, *busy, served={"busy": 10_000_000})

    assert chosen.index("busy:0") == 2


def test_higher_priority_goes_first_within_a_tenant() -> None:
    assert ordered(slice_of("low", priority=1), slice_of("high", priority=9)) == [
        "high:0",
        "low:0",
    ]


def test_waiting_outweighs_priority_in_the_end() -> None:
    old = slice_of("old", priority=1, created_at=int(NOW) - 6000)

    assert ordered(slice_of("new", priority=9), old)[0] == "old:0"


def test_the_list_is_kept_short() -> None:
    many = [slice_of("large", index) for index in range(50)]

    assert len(ordered(*many, rows=100)) == 10


def test_slices_of_one_batch_keep_their_order() -> None:
    assert ordered(*[slice_of("a", index) for index in (2, 0, 1)]) == ["a:0", "a:1", "a:2"]


def listed(*slices: ReadySlice, rows: int = 1000) -> list[str]:
    return [slice_.member for slice_ in ready_list(slices, {}, now=NOW, rows=rows)]


def test_what_is_ready_stays_so_behind_what_is_more_urgent() -> None:
    ready = slice_of("old", is_ready=True, rows=1000)
    urgent = slice_of("late", expires_at=int(NOW) + 60, rows=1000)

    assert listed(ready, urgent) == ["late:0", "old:0"]


def test_a_list_to_which_nothing_is_added_is_left_alone() -> None:
    assert listed(slice_of("a", is_ready=True), slice_of("b", is_ready=True)) == []


def test_a_ready_list_never_holds_more_than_one_call_puts_in_order() -> None:
    ready = [slice_of("old", index, is_ready=True, rows=1) for index in range(MAX_READY - 1)]
    urgent = [slice_of("late", index, expires_at=int(NOW) + 60, rows=1) for index in range(5)]

    assert listed(*ready, *urgent)[0] == "late:0"
    assert len(listed(*ready, *urgent)) == MAX_READY
