import os
import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = "import sys; sys.argv[0] = 'batchyard'; from cli.__main__ import main; main()"


def _batchyard(*arguments: str, **variables: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", _PROGRAM, *arguments],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script_that_asks_the_command(shell: str) -> None:
    script = _batchyard("completion", shell)

    assert "_BATCHYARD_COMPLETE" in script
    assert f"complete_{shell}" in script


def test_bash_completes_after_the_line_of_the_documentation() -> None:
    line = (
        'eval "$(batchyard completion bash)"; COMP_WORDS=(batchyard files ""); COMP_CWORD=2; '
        'asks=$(complete -p batchyard); asks=${asks#*-F }; ${asks% *} batchyard "" files; '
        'echo "${COMPREPLY[@]}"'
    )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    shown = subprocess.run(
        ["bash", "--norc", "-c", line],
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )

    assert {"ls", "check", "get", "rm"} == set(shown.stdout.split())


def test_commands_and_their_options_are_completed() -> None:
    def completed(line: str, word: int) -> list[str]:
        return _batchyard(
            _BATCHYARD_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(word)
        ).split()

    assert {"run", "resume", "retry", "rebuild", "remake"} == set(completed("batchyard r", 1))
    assert {"ls", "check", "get", "rm"} == set(completed("batchyard files ", 2))
    assert "--partial" in completed("batchyard fetch --p", 2)
    # An operator's command, which is imported for this.
    assert {"create", "list", "revoke", "set"} == set(completed("batchyard keys ", 2))
