import pytest

from worker.settings import WorkerSettings

NEEDED = {
    "redis_url": "redis://127.0.0.1",
    "s3_endpoint": "127.0.0.1:1",
    "s3_access_key": "key",
    "s3_secret_key": "secret",
    "catalog": "catalog.yaml",
}


@pytest.mark.parametrize(
    ("given", "idle_seconds", "expected"),
    [(None, 7200.0, 7200.0), (None, 10.0, 300.0), (2.0, 7200.0, 2.0)],
)
def test_a_lane_job_stays_as_long_as_its_idle_engine(
    given: float | None, idle_seconds: float, expected: float
) -> None:
    settings = WorkerSettings.model_validate({**NEEDED, "linger_seconds": given})

    assert settings.linger(idle_seconds) == expected
