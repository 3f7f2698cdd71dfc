"""The examples in README and docs that are marked `python run` do run, against a whole fleet."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import RunningFleet
from tests.examples import examples


@pytest.mark.parametrize("example", examples().values(), ids=examples().keys())
def test_the_example_runs(
    warm_chat: RunningFleet, warm_embeddings: RunningFleet, example: str, tmp_path: Path
) -> None:
    assert warm_chat is warm_embeddings

    # The clients would rather use a proxy, or a key, of the developer's own environment.
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", example],
        env={**clean, **warm_chat.environment},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    assert "completed" in ended.stdout
