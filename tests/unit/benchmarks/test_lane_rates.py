import json
from collections.abc import Iterator

import pytest

from benchmarks.lane_rates import verify


def output(numbers: list[int], answered: int | None = None) -> Iterator[str]:
    for number in numbers:
        said = number if answered is None else answered
        message = {"content": f"{said} one two three"}
        body = {"choices": [{"message": message}]}
        yield json.dumps({"custom_id": f"row-{number}", "response": {"body": body}})


def test_an_output_with_each_row_once_and_in_order_is_right() -> None:
    verify(output([0, 1, 2]), 3)


@pytest.mark.parametrize("numbers", [[0, 2], [0, 1, 1], [0, 2, 1], [0, 1, 2, 3], [0, 1]])
def test_a_row_that_is_lost_doubled_or_moved_is_found(numbers: list[int]) -> None:
    with pytest.raises(RuntimeError):
        verify(output(numbers), 3)


def test_an_answer_to_another_row_is_found() -> None:
    with pytest.raises(RuntimeError, match="row 0"):
        verify(output([0], answered=1), 1)
