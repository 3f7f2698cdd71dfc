from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import InvalidInputError
from shared.settings import TenantDefaults
from shared.tenants import LIMITS, TenantSettings, changed, decode, encode, weights

_LIMIT = st.none() | st.integers(1, 50)
_SETTINGS = st.builds(
    TenantSettings,
    weight=st.none() | st.floats(0.1, 10),
    models=st.none() | st.lists(st.sampled_from("abc*"), min_size=1).map(tuple),
    **dict.fromkeys(LIMITS, _LIMIT),
)


@given(_SETTINGS)
def test_what_is_kept_is_read_back(settings: TenantSettings) -> None:
    assert decode(encode(settings)) == settings


def test_a_field_of_a_newer_version_is_left_out() -> None:
    assert decode(b'{"event_streams": 3, "colour": "red"}') == TenantSettings(event_streams=3)


@given(_SETTINGS, _SETTINGS)
def test_what_is_set_goes_before_what_lies_under_it(
    mine: TenantSettings, other: TenantSettings
) -> None:
    both = mine.over(other)

    for name in TenantSettings.__struct_fields__:
        own, below = getattr(mine, name), getattr(other, name)
        assert getattr(both, name) == (below if own is None else own)


@given(_SETTINGS)
def test_over_the_fleets_own_settings_every_limit_has_a_value(settings: TenantSettings) -> None:
    whole = settings.over(TenantDefaults().tenant)

    assert [name for name in LIMITS if getattr(whole, name) is None] == []
    assert whole.weight is not None


@given(_SETTINGS, st.sets(st.sampled_from("abcd")))
def test_what_may_be_used_is_what_is_usable(settings: TenantSettings, served: set[str]) -> None:
    models = dict.fromkeys(served, 0)

    assert settings.usable(models).keys() == {name for name in served if settings.may_use(name)}
    if settings.models is None or "*" in settings.models:
        assert settings.usable(models) == models
    else:
        assert settings.usable(models).keys() <= set(settings.models)


@given(_SETTINGS, st.dictionaries(st.sampled_from([*LIMITS]), st.integers(1, 50)))
def test_a_change_changes_what_it_names_and_nothing_else(
    before: TenantSettings, changes: dict[str, int]
) -> None:
    after = changed(before, changes)

    assert changed(after, changes) == after
    for name in TenantSettings.__struct_fields__:
        assert getattr(after, name) == changes.get(name, getattr(before, name))
    assert changed(after, {}, TenantSettings.__struct_fields__) == TenantSettings()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"weight": 0.0}, "weight"),
        ({"weight": float("nan")}, "weight"),
        ({"weight": float("inf")}, "weight"),
        ({"models": ()}, "models"),
        ({"event_streams": -1}, "event_streams: from 0"),
        ({"enqueued_requests": 0}, "enqueued_requests: from 1"),
        ({"stored_bytes": 2**52 + 1}, "stored_bytes"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_its_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInputError, match=said):
        changed(TenantSettings(), changes)


def test_each_setting_but_weight_and_models_is_a_limit() -> None:
    assert {*LIMITS, "weight", "models"} == set(TenantSettings.__struct_fields__)


def test_a_weight_of_its_own_goes_before_the_fleets() -> None:
    own = {"a": TenantSettings(weight=3.0), "b": TenantSettings(event_streams=1)}

    assert weights(own, {"a": 1.0, "b": 2.0}) == {"a": 3.0, "b": 2.0}
