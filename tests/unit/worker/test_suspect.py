import json
from typing import Any

import pytest

from shared.slices import Claim, Slice, Stop, StrikeRange
from worker.outcomes import Outcome
from worker.strikes import MAX_STRIKES
from worker.suspect import Suspect


def _suspect(*ranges: StrikeRange, engine_deaths: int = 0, **of_tenant: Any) -> Suspect:
    claim = Claim(
        lane="m@gpu",
        batch_id="batch_" + "ab" * 16,
        index=3,
        epoch=1,
        strikes=1,
        slice=Slice(0, 100, 10, 4, 10),
        bucket="b",
        key="k",
        etag="e",
        endpoint="/v1/chat/completions",
        tenant="acme",
        strike_ranges=ranges,
        last_words="It died.",
        engine_deaths=engine_deaths,
        **of_tenant,
    )
    lines = [json.dumps({"custom_id": f"row-{row}"}).encode() for row in range(4)]
    return Suspect(claim, b"\n".join(lines), b"", max_deaths=16, max_tenant_deaths=20)


def test_a_row_with_too_many_strikes_has_its_error_before_anything_runs() -> None:
    suspect = _suspect(StrikeRange(1, 2, MAX_STRIKES), StrikeRange(2, 3, 1))

    assert [suspect.needs(row) for row in range(4)] == [True, False, True, True]
    assert not suspect.has_answers


def test_of_a_batch_that_killed_too_many_engines_every_row_with_a_strike_has_its_error() -> None:
    suspect = _suspect(StrikeRange(1, 3, 1), engine_deaths=16)

    assert [suspect.needs(row) for row in range(4)] == [True, False, False, True]


@pytest.mark.parametrize(
    ("of_tenant", "is_given_up"),
    [
        ({"tenant_deaths": 19}, False),
        ({"tenant_deaths": 20}, True),
        ({"tenant_deaths": 20, "tenant_death_limit": 21}, False),
        ({"tenant_deaths": 2, "tenant_death_limit": 2}, True),
        ({"tenant_death_limit": 0}, True),
    ],
)
def test_of_a_tenant_that_killed_too_many_engines_today_rows_with_strikes_have_their_error(
    of_tenant: dict[str, int], is_given_up: bool
) -> None:
    suspect = _suspect(StrikeRange(1, 3, 1), **of_tenant)

    assert [suspect.needs(row) for row in range(4)] == [
        True,
        not is_given_up,
        not is_given_up,
        True,
    ]
    if is_given_up:
        [_, (_, error), *_] = suspect.results  # type: ignore[misc]  # the second has one
        assert b"as may in a day: " in error
        assert b"midnight UTC" in error


def test_a_slice_that_is_done_names_its_dead_rows() -> None:
    suspect = _suspect(StrikeRange(1, 2, MAX_STRIKES))
    for row in (0, 2, 3):
        suspect.results[row] = (200, b"{}")

    result = suspect.done(now=77)

    assert suspect.is_done
    assert result.outcome is Outcome.DONE
    assert result.body.rows == 4
    [dead] = result.dead
    assert (dead.line, dead.custom_id, dead.deaths, dead.reason, dead.at) == (
        12,
        "row-1",
        MAX_STRIKES,
        "It died.",
        77,
    )


def test_a_slice_that_is_struck_takes_its_strikes_with_it() -> None:
    suspect = _suspect(StrikeRange(0, 2, 1))

    suspect.strike(1)
    result = suspect.not_done(Outcome.STRUCK, "It died.")

    assert suspect.was_struck
    assert result.strike_ranges == (StrikeRange(0, 1, 1), StrikeRange(1, 2, 2))
    assert result.body.rows == 0


def test_nothing_of_a_closed_batch_runs_and_what_ran_is_kept() -> None:
    suspect = _suspect()
    suspect.results[0] = (200, b"{}")

    suspect.stop = Stop.CLOSED

    assert not any(suspect.needs(row) for row in range(4))
    assert suspect.is_done
    assert suspect.done(now=0).body.rows == 1
