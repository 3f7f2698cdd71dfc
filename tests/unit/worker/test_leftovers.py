import os
import socket
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.eventually import wait_until
from worker.leftovers import ADAPTER_FOLDER, sweep_leftovers, sweep_regularly

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


def test_a_socket_goes_when_nobody_listens_however_old_the_one_is_at_which_somebody_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A socket's path has a hundred characters at most.
    with tempfile.TemporaryDirectory() as scratch, _listening(Path(scratch)) as used:
        monkeypatch.setattr(tempfile, "tempdir", scratch)
        with _listening(Path(scratch)) as deserted, _listening(Path(scratch)) as new:
            pass
        for path in (used, deserted):
            os.utime(path, (time.time() - 9 * _DAY,) * 2)

        assert sweep_leftovers() == 1

        assert [used.exists(), deserted.exists(), new.exists()] == [True, False, True]


@contextmanager
def _listening(folder: Path) -> Iterator[Path]:
    path = folder / str(uuid.uuid4())
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        yield path


def test_what_cannot_be_removed_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "vllm_dist_folder").mkdir()

    assert sweep_leftovers(now=time.time() + 99 * _DAY) == 0


def _file(path: Path, *, days: float) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text("x")
    os.utime(path, (time.time() - days * _DAY,) * 2)
    return path


def test_adapters_of_processes_that_are_gone_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    # No process has this number.
    dead, own = (tmp_path / ADAPTER_FOLDER.format(pid) for pid in (2**22 + 1, os.getpid()))
    for folder in (dead, own):
        (folder / "inside").mkdir(parents=True)

    assert sweep_leftovers() == 1

    assert list(tmp_path.iterdir()) == [own]
