from typing import Any

import pytest
from pydantic import ValidationError

from gateway.settings import GatewaySettings


def test_a_day_is_always_among_the_windows() -> None:
    assert _settings().completion_windows == ("24h",)
    assert _settings(completion_windows=["1h"]).completion_windows == ("24h", "1h")
    assert _settings(completion_windows=["7d", "24h"]).completion_windows == ("7d", "24h")


@pytest.mark.parametrize("window", ["", "0h", "24", "24m", "h", "1000h"])
def test_a_window_is_hours_or_days(window: str) -> None:
    with pytest.raises(ValidationError):
        _settings(completion_windows=[window])


def test_secrets_are_not_printed() -> None:
    assert "hush" not in repr(_settings())


def _settings(**changes: Any) -> GatewaySettings:
    return GatewaySettings.model_validate(
        {
            "amqp_url": "amqp://u:hush@h",
            "redis_url": "redis://:hush@h",
            "s3_endpoint": "http://h",
            "s3_access_key": "a",
            "s3_secret_key": "hush",
            "catalog": "c.yaml",
            **changes,
        }
    )
