import subprocess
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def test_no_file_holds_the_marks_of_an_unresolved_merge() -> None:
    found = subprocess.run(
        ["git", "grep", "-nIE", "^(<<<<<<<|>>>>>>>)( |$)"],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (found.stdout, found.stderr) == ("", "")
