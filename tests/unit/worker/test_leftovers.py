import os
import tempfile
import time
from pathlib import Path

import pytest

from tests.eventually import wait_until
from worker.leftovers import sweep_leftovers, sweep_regularly

_DAY = 86_400.0


def test_old_logs_and_old_meeting_places_go_and_all_else_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch, logs = tmp_path / "tmp", tmp_path / "logs"
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    old = [
        _file(scratch / "vllm_dist_0a1b", days=9),
        _file(logs / "job-driver-lane-m-1.log", days=9),
        _file(logs / "worker-00ff-01000000-77.out", days=4),
        _file(logs / "worker-00ff-01000000-77.err.1", days=4),
        _file(logs / "python-core-worker-00ff_77.log", days=4),
    ]
    kept = [
        _file(scratch / "vllm_dist_2c3d", days=1),
        _file(scratch / "of-somebody-else", days=99),
        _file(logs / "job-driver-lane-m-2.log", days=2),
        _file(logs / "raylet.out", days=99),
        _file(logs / "serve" / "replica_m.log", days=99),
    ]

    assert sweep_leftovers(logs) == len(old)

    assert not [path for path in old if path.exists()]
    assert [path for path in kept if not path.exists()] == []
    assert sweep_leftovers(logs) == sweep_leftovers(None) == 0


def test_a_lane_job_that_lives_for_weeks_sweeps_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    logs = tmp_path / "logs"
    logs.mkdir()
    ended = sweep_regularly(logs, every_seconds=0.01)

    try:
        for number in range(2):
            old = _file(logs / f"worker-{number}.out", days=9)
            wait_until(lambda old=old: not old.exists())  # type: ignore[misc]  # bound now
    finally:
        ended.set()


def test_what_cannot_be_removed_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "vllm_dist_folder").mkdir()

    assert sweep_leftovers(now=time.time() + 99 * _DAY) == 0


def _file(path: Path, *, days: float) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("x")
    os.utime(path, (time.time() - days * _DAY,) * 2)
    return path
