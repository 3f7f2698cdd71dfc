import pytest

from gateway.limit_errors import limit_headers, limit_reached, too_many_calls
from gateway.limits import call_rates
from gateway.settings import GatewaySettings
from shared.catalog import Catalog
from shared.state import Rate, RateStatus
from shared.submission.admission import NewBatchQuota, Reached, batches_rate

_RATE = Rate("requests", 100, 60)
_CATALOG = Catalog.model_validate(
    {"pools": {"cpu": {"resources": {"CPU": 1}}}, "models": {"m": {"pools": ["cpu"]}}}
)


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("/v1/batches", ["requests"]),
        ("/v1/models/a/v1/files", ["requests"]),
        ("/v1/files", ["requests", "files"]),
        ("/v1/files/file-1/content", ["requests", "files"]),
        ("/v1/uploads/upload_1/parts", ["requests", "files"]),
    ],
)
def test_calls_about_files_count_twice(path: str, names: list[str]) -> None:
    assert [rate.name for rate in call_rates(path, _settings())] == names


def test_the_limits_are_openais_unless_set_otherwise() -> None:
    _, files = call_rates("/v1/files", _settings())

    assert files == Rate("files", 1_000, 60, "file_requests_per_minute")
    quota = NewBatchQuota.of(_settings(batches_per_hour=7), _CATALOG)
    assert _settings().batches_per_hour == 2_000
    assert batches_rate(quota.batches_per_hour)[:3] == ("batches", 7, 3600)


def test_the_headers_are_openais() -> None:
    assert limit_headers(RateStatus(_RATE, 0, 97, 1_800_000)) == {
        "x-ratelimit-limit-requests": "100",
        "x-ratelimit-remaining-requests": "97",
        "x-ratelimit-reset-requests": "1.8s",
    }


@pytest.mark.parametrize(
    ("name", "words"),
    [("requests", "requests per min (RPM)"), ("files", "files"), ("batches", "batches per hour")],
)
def test_a_call_too_many_is_told_what_ran_out_and_when_it_comes_back(name: str, words: str) -> None:
    error = too_many_calls("acme", RateStatus(Rate(name, 100, 60), 600_000, 0, 60_000_000))

    assert words in str(error)
    assert "in 600ms" in str(error)
    assert (error.kind, error.code, error.wait_seconds) == ("requests", "rate_limit_exceeded", 0.6)


def test_a_full_queue_names_no_time_to_wait() -> None:
    error = limit_reached("acme", Reached("tokens", "m", 5, 5))

    assert (error.kind, error.code, error.wait_seconds) == ("tokens", "token_limit_exceeded", None)


def _settings(**changes: int) -> GatewaySettings:
    return GatewaySettings.model_validate(
        {
            "amqp_url": "amqp://h",
            "redis_url": "redis://h",
            "s3_endpoint": "http://h",
            "s3_access_key": "a",
            "s3_secret_key": "s",
            "catalog": "c.yaml",
            **changes,
        }
    )
