from dispatcher.ordering import order
from shared.slices import ReadySlice

NOW = 1_000_000.0


def piece(batch: str, index: int = 0, **changes: object) -> ReadySlice:
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
    large = [piece("large", index, created_at=int(NOW) - 5) for index in range(3, 6)]

    assert ordered(*large, piece("small"))[0] == "small:0"


def test_a_batch_close_to_its_deadline_goes_first() -> None:
    late = piece("late", 7, expires_at=int(NOW) + 60, priority=0)

    assert ordered(piece("a", priority=9), late)[0] == "late:7"


def test_tenants_take_turns_in_tokens_not_in_slices() -> None:
    heavy = [piece("heavy", index, tenant="heavy", tokens=3000) for index in range(2)]
    light = [piece("light", index, tenant="light", tokens=1000) for index in range(4)]

    assert ordered(*heavy, *light) == [
        "heavy:0",
        "light:0",
        "light:1",
        "light:2",
        "heavy:1",
        "light:3",
    ]


def test_a_tenant_that_was_given_more_waits_for_the_others() -> None:
    slices = [piece("a", tenant="a"), piece("b", tenant="b")]

    assert ordered(*slices, served={"a": 5000, "b": 0}) == ["b:0", "a:0"]


def test_a_tenant_that_was_away_does_not_get_all_that_it_never_asked_for() -> None:
    back = [piece("back", index, tenant="back", tokens=150_000) for index in range(4)]
    busy = [piece("busy", index, tenant="busy", tokens=150_000) for index in range(4)]

    chosen = ordered(*back, *busy, served={"busy": 10_000_000})

    assert chosen.index("busy:0") == 2


def test_higher_priority_goes_first_within_a_tenant() -> None:
    assert ordered(piece("low", priority=1), piece("high", priority=9)) == [
        "high:0",
        "low:0",
    ]


def test_waiting_outweighs_priority_in_the_end() -> None:
    old = piece("old", priority=1, created_at=int(NOW) - 6000)

    assert ordered(piece("new", priority=9), old)[0] == "old:0"


def test_the_list_is_kept_short() -> None:
    many = [piece("large", index) for index in range(50)]

    assert len(ordered(*many, rows=100)) == 10


def test_slices_of_one_batch_keep_their_order() -> None:
    assert ordered(*[piece("a", index) for index in (2, 0, 1)]) == ["a:0", "a:1", "a:2"]
