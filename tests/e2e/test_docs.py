"""The examples in README and docs that are marked `python run` do run, against a whole fleet."""

from pathlib import Path

import pytest

from tests.e2e.conftest import WARM_SECONDS, RunningFleet
from tests.examples import assert_runs, examples


@pytest.mark.parametrize("example", examples().values(), ids=examples().keys())
def test_the_example_runs(
    warm_chat: RunningFleet, warm_embeddings: RunningFleet, example: str, tmp_path: Path
) -> None:
    assert warm_chat is warm_embeddings

    assert_runs(example, warm_chat.environment, folder=tmp_path, timeout=WARM_SECONDS)
