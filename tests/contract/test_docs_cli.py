"""The examples of docs/cli.md do run."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.conftest import Caller, rows
from tests.contract.user_commands import Command

_PAGE = Path(__file__).parents[2] / "docs/cli.md"
_EXAMPLES = re.findall(r"^```sh run\n(.*?)^```", _PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("example", _EXAMPLES, ids=lambda text: text.partition("\n")[0])
def test_the_example_runs(acme: Caller, tmp_path: Path, example: str) -> None:
    command = Command(acme, tmp_path)
    command.file("in.jsonl", rows("question one", "question two"))
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "batchyard"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -W error -m cli "$@"\n')
    program.chmod(0o755)

    ended = subprocess.run(
        ["/bin/sh", "-ec", example],
        cwd=tmp_path,
        env=command.environment() | {"PATH": f"{program.parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
