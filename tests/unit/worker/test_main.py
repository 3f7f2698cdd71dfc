import pytest

from worker.__main__ import read_arguments

_LANE = ["lane", "chat@cpu", "--job", "job-1", "--catalog", "a1"]


def test_a_lane_job_is_told_its_lane_its_name_and_the_catalog() -> None:
    arguments, unknown = read_arguments(_LANE)

    assert (arguments.lane, arguments.job, arguments.catalog) == ("chat@cpu", "job-1", "a1")
    assert unknown == []


def test_a_lane_job_runs_under_an_older_dispatcher() -> None:
    arguments, _ = read_arguments(_LANE[:4])

    assert arguments.catalog == ""


def test_a_lane_job_runs_under_a_newer_dispatcher() -> None:
    arguments, unknown = read_arguments([*_LANE, "--from-the-future", "7", "--flag"])

    assert (arguments.lane, arguments.job, arguments.catalog) == ("chat@cpu", "job-1", "a1")
    assert unknown == ["--from-the-future", "7", "--flag"]


def test_a_check_knows_all_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        read_arguments(["check", "catalog.yaml", "--from-the-future"])

    assert "--from-the-future" in capsys.readouterr().err


def test_a_tuning_is_told_its_rows_and_its_time() -> None:
    words = ["tune", "chat", "--catalog", "c.yaml", "--rows", "r.jsonl", "--minutes", "1.5"]

    arguments, _ = read_arguments(words)

    assert (arguments.model, arguments.minutes, arguments.pool) == ("chat", 1.5, None)
