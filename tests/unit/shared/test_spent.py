import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.spent import (
    NOTHING,
    by_pool,
    from_text,
    money,
    of_engines,
    of_lanes,
    plus,
    prices_text,
    to_text,
)

_POOLS = st.from_regex(r"[a-z0-9][a-z0-9-]{0,10}", fullmatch=True)
_SPENT = st.dictionaries(_POOLS, st.integers(1, 10**13))


@given(_SPENT)
def test_what_was_spent_is_one_word_that_says_it_all(spent: dict[str, int]) -> None:
    text = to_text(spent)

    assert len(text.split()) == 1
    assert from_text(text) == spent


@pytest.mark.parametrize("text", ["h100", "h100=", "h100=1,", "h100=-1", "=5", "H=1", "a=1 b=2"])
def test_another_word_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="does not say what was spent"):
        from_text(text)


def test_nothing_is_nothing() -> None:
    assert to_text(NOTHING) == to_text({"h100": 0}) == "-"
    assert from_text("-") == from_text("") == of_lanes("") == {}


@given(st.lists(_SPENT, max_size=5))
def test_a_sum_has_the_time_of_each_pool(parts: list[dict[str, int]]) -> None:
    total = plus(*parts)

    assert sum(total.values()) == sum(sum(part.values()) for part in parts)
    assert by_pool(of_engines("m@h100", total)) == total


def test_time_costs_the_price_of_the_pool_that_it_was_spent_on() -> None:
    spent = {"m@h100": 1_800_000_000, "m@l4": 3_600_000_000, "m@free": 3_600_000_000}

    assert money(spent, {"h100": 4.0, "l4": 0.5}) == pytest.approx(2.5)


def test_a_record_keeps_the_prices_that_there_are() -> None:
    text = prices_text({"l4": 0.5, "cpu": 0.0}, "EUR")

    assert json.loads(text) == {"currency": "EUR", "pools": {"l4": 0.5}}
