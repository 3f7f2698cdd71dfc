import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PASSES = (
    "from shared.crash import point; [point(name) for name in 'a b a b a'.split()]; print('on')"
)


@pytest.mark.parametrize("at", ["a", "b", "a:3", "c,b:2"])
def test_a_process_dies_at_a_point_that_is_named(at: str, tmp_path: Path) -> None:
    ended = passing(at, tmp_path)

    assert ended.returncode == -signal.SIGKILL
    assert ended.stdout == ""
    assert (tmp_path / "crashed").read_text() == f"{at.rpartition(',')[2][0]}\n"


@pytest.mark.parametrize("at", ["", "c", "a:4", "b:3,c"])
def test_a_process_goes_on_where_it_does_not_come_by(at: str, tmp_path: Path) -> None:
    ended = passing(at, tmp_path)

    assert ended.stdout == "on\n"
    assert not (tmp_path / "crashed").exists()


def passing(at: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    variables = {"BATCHYARD_CRASH_AT": at, "BATCHYARD_CRASH_LOG": str(folder / "crashed")}
    return subprocess.run(
        [sys.executable, "-c", PASSES],
        env={**os.environ, **variables},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
