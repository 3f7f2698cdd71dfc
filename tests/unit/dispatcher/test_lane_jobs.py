import pytest

from dispatcher.cluster import JobStatus
from dispatcher.lane_jobs import START_SECONDS, FruitlessJobs, Step, next_step
from shared.state import JobRecord

NOW = 1_000_000.0
SILENCE = 60.0


def step(status: JobStatus | None, *, is_needed: bool = True, **changes: float) -> Step:
    job = JobRecord("job-1", NOW - 5, 0, 0, 0, 0, 0)._replace(**changes)  # type: ignore[arg-type]
    return next_step(job, status, is_needed=is_needed, now=NOW, silence_seconds=SILENCE)


def test_a_job_that_was_opened_and_never_submitted_is_submitted() -> None:
    assert step(None) is Step.SUBMIT


def test_a_job_that_ray_has_forgotten_is_buried() -> None:
    assert step(None, beat_at=NOW - 1) is Step.BURY
    assert step(None, is_needed=False) is Step.BURY


@pytest.mark.parametrize("status", [JobStatus.STOPPED, JobStatus.SUCCEEDED, JobStatus.FAILED])
def test_a_job_that_has_ended_is_buried_however_it_ended(status: JobStatus) -> None:
    assert step(status, beat_at=NOW) is Step.BURY


def test_a_job_is_stopped_when_it_has_been_silent_for_too_long() -> None:
    assert step(JobStatus.RUNNING, beat_at=NOW - SILENCE) is Step.NOTHING
    assert step(JobStatus.RUNNING, beat_at=NOW - SILENCE - 1) is Step.STOP


def test_a_job_that_starts_has_longer_for_its_first_sign_of_life() -> None:
    patience = START_SECONDS + SILENCE

    assert step(JobStatus.PENDING, opened_at=NOW - patience) is Step.NOTHING
    assert step(JobStatus.PENDING, opened_at=NOW - patience - 1) is Step.STOP


def test_each_fruitless_job_in_a_row_delays_the_next_one_for_longer_up_to_a_minute() -> None:
    jobs, pauses = FruitlessJobs(5), []
    for _ in range(8):
        jobs.add("m@gpu", NOW)
        pauses.append(next(s for s in range(100) if jobs.may_open("m@gpu", NOW + s)))

    assert pauses == [2, 4, 8, 16, 32, 60, 60, 60]
    assert jobs.may_open("other@gpu", NOW)


def test_a_lane_has_failed_after_so_many_fruitless_jobs_in_a_row() -> None:
    jobs = FruitlessJobs(3)
    jobs.add("m@gpu", NOW)
    assert not jobs.would_be_last("m@gpu")
    jobs.add("m@gpu", NOW)
    assert jobs.would_be_last("m@gpu")

    jobs.forgive("m@gpu")

    assert not jobs.would_be_last("m@gpu")
    assert not jobs.may_open("m@gpu", NOW)
    jobs.forget("m@gpu")
    assert jobs.may_open("m@gpu", NOW)
