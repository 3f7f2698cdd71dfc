from typing import Any

import pytest
from pydantic import ValidationError

from shared.catalog import Catalog, Lane
from shared.starting import Starting, starting_problems


def catalog(**fields: Any) -> Catalog:
    return Catalog.model_validate(
        {
            "pools": {"p": {"resources": {"CPU": 1}}},
            "models": {"m": {"pools": ["p"], **fields}},
        }
    )


def test_by_default_vllm_is_told_only_to_keep_its_plan_on_cards() -> None:
    start = Starting()

    assert start.arguments == {}
    assert start.environment(has_card=False) == {}
    assert start.environment(has_card=True) == {"VLLM_ENABLE_STARTUP_PLAN": "1"}


def test_what_is_said_becomes_arguments_and_variables_of_vllm() -> None:
    start = Starting(plan=False, cache="/cache", load_format="dummy", optimization_level=0)

    assert start.arguments == {"load_format": "dummy", "optimization_level": 0}
    assert start.environment(has_card=True) == {
        "VLLM_CACHE_ROOT": "/cache",
        "VLLM_ENABLE_STARTUP_PLAN": "0",
    }


@pytest.mark.parametrize(
    "fields", [{"cache": "here"}, {"optimization_level": 4}, {"core": "threads"}, {"sleep": True}]
)
def test_what_makes_no_sense_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Starting.model_validate(fields)


@pytest.mark.parametrize(
    ("start", "engine", "env", "field"),
    [
        ({"load_format": "auto"}, {"load_format": "auto"}, {}, "load_format"),
        ({"optimization_level": 1}, {"enforce_eager": True}, {}, "optimization_level"),
        ({"cache": "/a"}, {}, {"VLLM_CACHE_ROOT": "/b"}, "cache"),
        ({"plan": False}, {}, {"VLLM_ENABLE_STARTUP_PLAN": "1"}, "plan"),
    ],
)
def test_what_does_not_go_together_is_named(
    start: dict[str, Any], engine: dict[str, Any], env: dict[str, str], field: str
) -> None:
    found = list(starting_problems(Starting.model_validate(start), engine, env))

    assert [name for name, _ in found] == [field]


def test_what_goes_together_is_no_problem() -> None:
    start = Starting(optimization_level=0, cache="/a")

    assert not list(starting_problems(start, {"enforce_eager": True}, {"VLLM_USE_X": "1"}))
    assert not list(starting_problems(Starting(), {}, {"VLLM_ENABLE_STARTUP_PLAN": "1"}))


def test_another_start_is_another_engine_and_its_answers_stay_but_for_other_kernels() -> None:
    plain, planned = catalog(), catalog(start={"plan": False})
    dummy = catalog(start={"load_format": "dummy"})
    lane = Lane("m", "p")

    assert len({one.fingerprint(lane) for one in (plain, planned, dummy)}) == 3
    assert plain.identity("m") == planned.identity("m")
    assert plain.identity("m") != dummy.identity("m")
