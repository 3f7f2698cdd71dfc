import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def test_rooms_and_pure_files_import_only_what_they_may() -> None:
    result = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-logo"],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert result.returncode == 0, result.stdout + result.stderr
