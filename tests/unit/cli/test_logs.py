import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cli.__main__ import app
from shared import ids

BATCH = ids.batch_id("acme", "one")
OTHER = ids.batch_id("acme", "other")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "ray-logs" / "serve").mkdir(parents=True)
    _write(tmp_path / "gateway.log", _line(1, "http.answered", object_id=BATCH), "not JSON")
    _write(tmp_path / "dispatcher.log.1", _line(2, "batch.planned", batch_id=BATCH))
    _write(
        tmp_path / "dispatcher.log",
        _line(5, "batch.ended", batch_id=BATCH, waits={"check": 1}),
        _line(6, "batch.ended", batch_id=OTHER),
        f'{{"event": "cut off", "batch_id": "{BATCH}',
    )
    lane = tmp_path / "ray-logs" / "job-driver-lane-m.log"
    _write(lane, _line(3, "wave.started", batches=[OTHER, BATCH]), f"ray says {BATCH}")
    engine = tmp_path / "ray-logs" / "worker-1.err"
    _write(engine, f"(prefix) {_line(4, 'slice.struck', batch_id=BATCH)}")
    return tmp_path


def test_the_lines_of_all_processes_about_a_batch_are_in_order(run_dir: Path) -> None:
    shown = CliRunner().invoke(app, ["logs", BATCH, "--run-dir", str(run_dir), "--json"])

    assert shown.exit_code == 0
    assert [json.loads(line)["event"] for line in shown.stdout.splitlines()] == [
        "http.answered",
        "batch.planned",
        "wave.started",
        "slice.struck",
        "batch.ended",
    ]


def test_for_a_reader_a_line_has_time_process_event_and_fields(run_dir: Path) -> None:
    shown = CliRunner().invoke(app, ["logs", BATCH, "--run-dir", str(run_dir)])

    last = shown.stdout.splitlines()[-1]
    assert last.split()[:4] == ["2026-11-23T00:00:05", "p", "info", "batch.ended"]
    assert f'batch_id={BATCH} waits={{"check": 1}}' in last


def test_what_is_no_id_is_refused(run_dir: Path) -> None:
    shown = CliRunner().invoke(app, ["logs", "*", "--run-dir", str(run_dir)])

    assert shown.exit_code != 0


def _line(second: int, event: str, **fields: object) -> str:
    at = f"2026-11-23T00:00:{second:02d}.5Z"
    return json.dumps({"timestamp": at, "level": "info", "process": "p", "event": event, **fields})


def _write(path: Path, *lines: str) -> None:
    path.write_text("\n".join(lines) + "\n")
