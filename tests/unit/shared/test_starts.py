import pytest

from shared.engines import EngineRecord
from shared.lane_waits import Start, starts_in

NOW = 1_000.0
RUNS = EngineRecord(lane="m@gpu", state="running", since=NOW, seen_at=NOW)
NO_JOB = Start(opened_at=0, has_results=False, is_warm=False, warm=5, cold=90)


@pytest.mark.parametrize(
    ("start", "engine", "seconds"),
    [
        (NO_JOB, None, 90),
        (NO_JOB, RUNS, 5),
        (NO_JOB._replace(opened_at=NOW - 60), None, 30),
        (NO_JOB._replace(opened_at=NOW - 600), None, 0),
        (NO_JOB._replace(opened_at=NOW - 1, is_warm=True), None, 4),
        (NO_JOB._replace(opened_at=NOW - 1, has_results=True), None, 0),
        (NO_JOB._replace(cold=0), None, 5),
        (NO_JOB._replace(warm=0, cold=0), None, 0),
    ],
)
def test_a_start_takes_what_earlier_ones_took(
    start: Start, engine: EngineRecord | None, seconds: float
) -> None:
    assert starts_in(start, engine, now=NOW) == seconds
