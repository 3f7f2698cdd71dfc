from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from worker.tune_search import Limits, Search, Setting

FIRST = Setting(256, 8192, 1, 1)


def walked(search: Search, rate: Callable[[Setting], float]) -> list[Setting]:
    """All settings that a search tries on an engine that is so fast."""
    tried = []
    while (setting := search.next()) is not None:
        tried.append(setting)
        search.note(setting, rate(setting))
    return tried


def test_what_pays_is_taken_further_and_what_does_not_is_left() -> None:
    search = Search(FIRST, Limits(fronts=4))

    tried = walked(search, lambda one: min(one.seats, 1024) + 100 * min(one.fronts, 2))

    assert tried[0] == FIRST
    assert search.best == Setting(1024, 8192, 2, 1)
    assert len(tried) == len(set(tried))


def test_what_differs_by_less_than_two_runs_do_is_not_better() -> None:
    search = Search(FIRST, Limits())

    walked(search, lambda one: 100 + one.seats / 1000)

    assert search.best == FIRST


def test_what_does_not_start_is_never_the_best() -> None:
    search = Search(FIRST, Limits())

    walked(search, lambda one: 0.0 if one.seats > FIRST.seats else 50.0)

    assert search.best == FIRST
    assert search.rates[FIRST._replace(seats=512)] == 0


@given(
    st.tuples(st.integers(1, 4096), st.integers(8, 65_536), st.integers(1, 8), st.integers(1, 8)),
    st.integers(),
)
def test_a_search_ends_and_stays_within_its_limits(first: tuple[int, ...], seed: int) -> None:
    limits = Limits()
    search = Search(Setting(*first), limits)

    tried = walked(search, lambda one: float(hash((one, seed)) % 1000))

    assert len(tried) < 200
    for one in tried[1:]:
        assert all(1 <= value <= most for value, most in zip(one, limits, strict=True))
        assert one.seats < one.batched_tokens
