from typing import Any

import pytest

from cli.client.exit_codes import MEANINGS, ExitCode, code_of, code_of_error, worst
from shared.errors import BatchyardError, LimitError, NotFoundError, SetupError, TransientError


def _batch(status: str, failed: int = 0) -> dict[str, Any]:
    return {"status": status, "request_counts": {"total": 9, "completed": 0, "failed": failed}}


@pytest.mark.parametrize(
    ("batch", "code"),
    [
        (_batch("completed"), 0),
        (_batch("completed", failed=1), 3),
        (_batch("failed"), 4),
        (_batch("expired", failed=9), 5),
        (_batch("cancelled"), 5),
        (_batch("in_progress", failed=1), 6),
        (_batch("cancelling"), 6),
    ],
)
def test_each_outcome_has_its_code(batch: dict[str, Any], code: int) -> None:
    assert code_of(batch) == code


def test_several_batches_have_the_code_of_the_worst() -> None:
    assert worst([]) == 0
    assert worst([ExitCode.DONE, ExitCode.ROWS_FAILED]) == 3
    assert worst([ExitCode.ROWS_FAILED, ExitCode.ENDED_EARLY, ExitCode.BATCH_FAILED]) == 4


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (NotFoundError("x"), 2),
        (SetupError("x"), 2),
        (TransientError("x"), 7),
        (LimitError("x", kind="requests", code="y"), 7),
    ],
)
def test_what_may_work_later_has_a_code_of_its_own(error: BatchyardError, code: int) -> None:
    assert code_of_error(error) == code


def test_every_code_has_a_meaning() -> None:
    assert set(MEANINGS) == set(ExitCode)
