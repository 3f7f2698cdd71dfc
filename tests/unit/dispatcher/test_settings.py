from typing import Any

import pytest
from pydantic import ValidationError

from dispatcher.settings import DispatcherSettings
from shared.settings import SharedSettings

_UNITS = ("rows", "tokens", "seconds", "attempts", "bytes", "messages")


def test_every_quantity_carries_its_unit_in_its_name() -> None:
    own = DispatcherSettings.model_fields.keys() - SharedSettings.model_fields.keys()
    quantities = [
        name for name in own if DispatcherSettings.model_fields[name].annotation in (int, float)
    ]

    assert quantities
    assert [name for name in quantities if not set(_UNITS) & set(name.split("_"))] == []


@pytest.mark.parametrize("missing", ["amqp_url", "redis_url", "s3_endpoint", "ray_address"])
def test_an_address_has_no_default(missing: str) -> None:
    with pytest.raises(ValidationError, match=missing):
        _settings(**{missing: None})


@pytest.mark.parametrize("place", ["s3://data/", "s3://data/exports/", "s3://data/{tenant}/a/"])
def test_a_place_of_inputs_is_a_bucket_and_a_prefix(place: str) -> None:
    assert _settings(input_places={"acme": [place]}).input_places == {"acme": (place,)}


@pytest.mark.parametrize(
    "place", ["data/", "s3://data", "s3://data/acme", "s3:///", "https://data/", "s3://*/"]
)
def test_a_place_that_could_mean_more_is_refused(place: str) -> None:
    with pytest.raises(ValidationError):
        _settings(input_places={"acme": [place]})


@pytest.mark.parametrize("prefix", ["{tenant}/", "inbox/{tenant}/", "in/{tenant}/new-"])
def test_a_prefix_of_tenants_keeps_them_apart(prefix: str) -> None:
    assert _settings(tenant_prefix=prefix).tenant_prefix == prefix


@pytest.mark.parametrize("prefix", ["", "inbox/", "inbox/{tenant}", "inbox/*/", "{tenant}-*/"])
def test_a_prefix_that_tenants_would_share_is_refused(prefix: str) -> None:
    with pytest.raises(ValidationError, match="tenant_prefix"):
        _settings(tenant_prefix=prefix)


def test_secrets_are_not_printed() -> None:
    assert "hush" not in repr(_settings())


def _settings(**changes: Any) -> DispatcherSettings:
    return DispatcherSettings.model_validate(
        {
            "amqp_url": "amqp://u:hush@h",
            "redis_url": "redis://:hush@h",
            "s3_endpoint": "http://h",
            "s3_access_key": "a",
            "s3_secret_key": "hush",
            "catalog": "c.yaml",
            "ray_address": "http://h",
            "ray_token": "hush",
            **changes,
        }
    )
