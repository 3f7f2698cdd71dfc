"""Redis is rebuilt from S3 while gateways, dispatchers and lane jobs keep working."""

from pathlib import Path

import pytest

from tests.chaos.conftest import assert_survived


# It waits for batches to end, which takes minutes on a busy machine.
@pytest.mark.timeout(1800)
def test_an_older_redis_is_made_whole_under_a_fleet_that_works(tmp_path: Path) -> None:
    length = ("--seconds", "4", "--seed", "20260103")

    assert_survived("tests.chaos.outages", "redis-put-back", *length, folder=tmp_path)
