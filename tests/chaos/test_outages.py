"""Each outage for a few seconds, one after the other; `make outages` takes a minute for each."""

from pathlib import Path

import pytest

from tests.chaos.conftest import assert_survived


@pytest.mark.on_demand
@pytest.mark.timeout(1800)
def test_each_outage_is_named_answered_and_survived(tmp_path: Path) -> None:
    length = ("--seconds", "8", "--seed", "20260102")

    assert_survived("tests.chaos.outages", *length, folder=tmp_path)
