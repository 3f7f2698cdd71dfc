"""A short run: every named point, and then a plan of faults from a fixed seed."""

from pathlib import Path

import pytest

from tests.chaos.conftest import assert_survived


# About two minutes; what has not moved for many of them is no question of the machine's speed.
@pytest.mark.timeout(1800)
def test_a_short_run_breaks_no_promise(tmp_path: Path) -> None:
    length = ("--minutes", "0.5", "--gap", "1")

    assert_survived("tests.chaos", "--points", "--seed", "20260101", *length, folder=tmp_path)
