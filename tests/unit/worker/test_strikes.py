import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.slices import StrikeRange
from worker.strikes import (
    MAX_STRIKES,
    TOGETHER,
    dead_row_error,
    strike_ranges,
    strikes_by_row,
    trial_groups,
)


@given(st.lists(st.integers(0, MAX_STRIKES), max_size=60))
def test_strike_ranges_hold_the_strikes_of_each_row(strikes: list[int]) -> None:
    assert strikes_by_row(strike_ranges(strikes), len(strikes)) == strikes


def test_rows_that_were_in_no_death_cost_nothing_to_keep() -> None:
    assert strike_ranges([0] * 5 + [1] * 16 + [0] * 9 + [2]) == (
        StrikeRange(5, 21, 1),
        StrikeRange(30, 31, 2),
    )
    assert strike_ranges([0] * 9) == ()


@given(st.lists(st.lists(st.integers(0, MAX_STRIKES), max_size=40), max_size=4))
def test_each_row_with_strikes_is_tried_once_and_with_two_of_them_alone(
    strikes: list[list[int]],
) -> None:
    groups = list(trial_groups(strikes))

    tried = [place for group in groups for place in group]
    assert sorted(tried) == [
        (index, row)
        for index, counts in enumerate(strikes)
        for row, count in enumerate(counts)
        if count
    ]
    assert all(len(group) <= TOGETHER for group in groups)
    assert all(len(group) == 1 or {strikes[i][row] for i, row in group} == {1} for group in groups)


@pytest.mark.parametrize("killers", [1, 3, 10])
def test_a_row_that_kills_has_four_deaths_and_no_other_row_as_many(killers: int) -> None:
    """The limit on deaths, without a fleet: each death costs one start of the engine."""
    deadly = set(random.Random(killers).sample(range(1000), killers))
    strikes, deaths = [0] * 1000, 0

    def run(rows: list[int]) -> None:
        nonlocal deaths
        if deadly.intersection(rows):
            deaths += 1
            for row in rows:
                strikes[row] += 1

    run(list(range(1000)))
    while groups := [
        rows
        for group in trial_groups([strikes])
        if (rows := [row for _, row in group if strikes[row] < MAX_STRIKES])
        and deadly.intersection(rows)
    ]:
        run(groups[0])

    assert {row for row, count in enumerate(strikes) if count >= MAX_STRIKES} == deadly
    assert deaths <= 4 * killers


def test_the_error_of_a_row_says_that_the_engine_died_of_it() -> None:
    alone = json.loads(dead_row_error(4, engine_deaths=3))["error"]
    early = json.loads(dead_row_error(1, engine_deaths=40))["error"]
    replayed = json.loads(dead_row_error(4, before=2, engine_deaths=2))["error"]

    assert alone == {
        "message": "The engine died each of the 4 times that it ran this request, the last two "
        "with no other request in it. Change this request before you send it again.",
        "type": "server_error",
        "param": None,
        "code": "engine_died",
    }
    assert "each of the 2 times that it ran this request, the last two" in replayed["message"]
    assert early["code"] == "engine_died"
    assert "not tried alone, because 40 engines have died" in early["message"]
