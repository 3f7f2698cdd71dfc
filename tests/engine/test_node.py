"""The death of a machine with an engine: here, of all processes of one of Ray's nodes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.catalog import Lane
from tests.engine.calls import Call, tiny_catalog
from tests.engine.conftest import a_ray
from tests.engine.machines import ANNEX, a_machine
from tests.eventually import eventually
from worker.engine_errors import EngineGoneError

pytest.importorskip("vllm", reason="needs the worker's dependencies")

pytestmark = [
    pytest.mark.timeout(600),
    # Ray and vLLM warn about themselves.
    pytest.mark.filterwarnings("ignore"),
]

LANE = Lane("tiny", ANNEX)
SEATS, ROWS = 4, 200


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    with a_ray(16) as ray:
        yield ray


async def test_after_the_death_of_a_machine_only_rows_without_an_answer_run_again(
    ray: Any, tmp_path: Path
) -> None:
    from worker.engine_deployment import ensure_engine

    catalog = tiny_catalog(tmp_path, LANE, {"CPU": 1, ANNEX: 1}, seats=SEATS)
    with a_machine(ray):
        engine = ensure_engine(catalog, LANE)
        first = Call(engine, "batch", [16] * ROWS)
        await eventually(lambda: len(first.results) > ROWS / 4, timeout=300)
    with pytest.raises(EngineGoneError):
        await first.task
    answered = len(first.results)
    assert answered < ROWS

    with a_machine(ray):
        second = Call(engine, "batch", [16] * (ROWS - answered))
        answers = await second.end()

    assert len(answers) == ROWS - answered
