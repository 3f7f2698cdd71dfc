"""The examples of docs/python.md, and that of open batches, run also where no model is slow."""

from pathlib import Path

import pytest

from tests.contract.conftest import EMBEDDER, MODEL, Caller
from tests.contract.user_commands import Command
from tests.examples import assert_runs, examples

_EXAMPLES = {
    name: text
    for name, text in examples().items()
    if name.startswith("python.md") or name == "open-batches.md-1"
}


@pytest.mark.parametrize("example", _EXAMPLES.values(), ids=_EXAMPLES.keys())
def test_the_example_runs(acme: Caller, tmp_path: Path, example: str) -> None:
    environment = Command(acme, tmp_path).environment()
    models = {"CHAT_MODEL": MODEL, "EMBED_MODEL": EMBEDDER}

    assert_runs(example, environment | models, folder=tmp_path, timeout=240)
