from math import inf, isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.ordering.pace import (
    Done,
    Pace,
    TokensOfRows,
    done_by_kind,
    kind_of,
    rows_per_second,
    to_pace,
    to_text,
)

CHAT, EMBEDDINGS = "/v1/chat/completions", "/v1/embeddings"
_DONE = st.builds(Done, st.integers(0, 10_000), st.integers(0, 10**7), st.integers(0, 10**7))
_STEPS = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(["a 1", "a 2", "b 1"]), _DONE, max_size=3),
        st.floats(0, 10_000),
    ),
    max_size=20,
)


def _learned(*steps: tuple[dict[str, Done], float]) -> Pace:
    pace = Pace()
    for done, seconds in steps:
        pace = pace.learn(done, seconds)
    return pace


@given(_STEPS)
def test_a_pace_is_never_zero_and_never_infinite(
    steps: list[tuple[dict[str, Done], float]],
) -> None:
    pace = _learned(*steps, ({"a 1": Done(10, 4000, 2000)}, 1.0))

    rate = rows_per_second(pace, "a", TokensOfRows(1000, 10))

    assert 0 < rate < inf
    assert all(isfinite(one.seconds) and one.seconds >= 0 for one in pace.kinds.values())


@given(_STEPS, st.floats(0, 10_000))
def test_time_without_results_changes_nothing(
    steps: list[tuple[dict[str, Done], float]], seconds: float
) -> None:
    pace = _learned(*steps)

    assert pace.learn({}, seconds) is pace
    assert pace.learn({"a 1": Done()}, seconds) is pace


@given(_STEPS)
def test_a_pace_survives_as_text(steps: list[tuple[dict[str, Done], float]]) -> None:
    pace = _learned(*steps)

    assert to_pace(to_text(pace)) == pace
    assert to_pace("") == Pace()


@given(_STEPS.filter(bool))
def test_no_second_of_the_engine_counts_twice(
    steps: list[tuple[dict[str, Done], float]],
) -> None:
    whole = _learned(*steps).whole

    assert whole is None or whole.seconds <= sum(seconds for _, seconds in steps) * (1 + 1e-9)


def test_kinds_that_run_together_get_their_own_paces() -> None:
    """Embeddings cost a tenth of the time of a chat's token, and both run in changing parts."""
    chat, embedding = kind_of(CHAT, 400, 1), kind_of(EMBEDDINGS, 400, 1)
    steps = []
    for step in range(300):
        chats, embeddings = (20, 5) if step % 3 else (5, 80)
        done = {chat: Done(chats, 400 * chats, 400 * chats)}
        done[embedding] = Done(embeddings, 400 * embeddings, 400 * embeddings)
        steps.append((done, 0.1 * chats + 0.01 * embeddings))

    pace = _learned(*steps)

    assert rows_per_second(pace, CHAT, TokensOfRows(400, 1)) == pytest.approx(10, rel=0.25)
    assert rows_per_second(pace, EMBEDDINGS, TokensOfRows(400, 1)) == pytest.approx(100, rel=0.25)


def test_a_kind_that_never_ran_is_expected_to_run_as_all_others() -> None:
    pace = _learned(({kind_of(CHAT, 400, 1): Done(100, 40_000, 20_000)}, 10.0))

    assert rows_per_second(pace, EMBEDDINGS, TokensOfRows(4_000, 10)) == pytest.approx(10)
    assert rows_per_second(Pace(), EMBEDDINGS, TokensOfRows(4_000, 10)) == 0


def test_what_an_engine_does_now_counts_more_than_what_it_did_hours_ago() -> None:
    kind = kind_of(CHAT, 400, 1)
    slow = [({kind: Done(10, 4000, 4000)}, 10.0)] * 1000
    fast = [({kind: Done(10, 4000, 4000)}, 1.0)] * 3000

    pace = _learned(*slow, *fast)

    assert rows_per_second(pace, CHAT, TokensOfRows(400, 1)) == pytest.approx(10, rel=0.35)


@pytest.mark.parametrize(
    ("tokens", "length"), [(0, 0), (1, 0), (3, 0), (4, 1), (63, 2), (64, 3), (65, 3), (1024, 5)]
)
def test_the_kind_of_a_row_is_its_endpoint_and_the_power_of_four_of_its_length(
    tokens: int, length: int
) -> None:
    assert kind_of(CHAT, 10 * tokens, 10) == f"{CHAT} {length}"


def test_counters_are_sums_by_kind() -> None:
    counts = {f"rows {CHAT} 3": 2, f"predicted {CHAT} 3": 200, f"used {CHAT} 3": 150}

    assert done_by_kind(counts) == {f"{CHAT} 3": Done(2, 200, 150)}
