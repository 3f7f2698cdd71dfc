import json
from pathlib import Path

import pytest

from benchmarks.noted_steps import Step, Steps, steps_between


def write(path: Path, steps: list[Step]) -> None:
    path.write_text("".join(json.dumps(step) + "\n" for step in steps))


def test_the_steps_of_the_engine_that_ran_are_told(tmp_path: Path) -> None:
    at = (9.0, 10.0, 10.01, 10.03, 10.04)
    ours = [Step(time, 100 + number, number == 2, 50) for number, time in enumerate(at)]
    write(tmp_path / "1.jsonl", ours)
    write(tmp_path / "2.jsonl", ours[:2])

    found = steps_between(tmp_path, 9.5, 11.0)

    assert found is not None
    assert found == pytest.approx(Steps(4, 0.25, 102.5, 10.0, 20.0, 0.5, 0.96))
    assert steps_between(tmp_path, 20.0, 21.0) is None
