"""The catalog that `batchyard up` makes, held against the installed vLLM."""

import importlib.util
import subprocess
import sys
from pathlib import Path

from cli.fleet.catalog import make_catalog
from tests.servers import absent


def test_the_made_catalog_needs_no_check_at_the_start(tmp_path: Path) -> None:
    if importlib.util.find_spec("vllm") is None:
        absent("vLLM", "PATH")
    path = make_catalog(tmp_path, ["some-company/some-model"])

    checked = subprocess.run(
        [sys.executable, "-m", "worker", "check", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )

    # Before that, what each engine takes.
    assert (checked.returncode, checked.stdout.splitlines()[-1]) == (0, "ok"), checked.stderr
