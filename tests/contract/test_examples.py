"""The programs of examples/ whose models no fleet of the tests has, against a simulated engine."""

from pathlib import Path

import pytest
from PIL import Image

from tests.contract.conftest import MODEL, Caller
from tests.contract.user_commands import Command
from tests.examples import run_python

_EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def environment(acme: Caller, tmp_path: Path) -> dict[str, str]:
    return Command(acme, tmp_path).environment()


def test_pictures_are_described(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    Image.new("RGB", (3, 3)).save(tmp_path / "own/pixel.png")
    (tmp_path / "own/notes.txt").write_text("no picture")
    program, model = _EXAMPLES / "images/images.py", ("--model", MODEL)

    drawn = run_python(
        program, *model, environment=environment, folder=tmp_path, timeout=240
    ).splitlines()
    [own] = run_python(
        program, "own", *model, environment=environment, folder=tmp_path, timeout=240
    ).splitlines()

    # The engine answers with what it was asked, in capitals.
    assert len(drawn) == 48
    assert drawn[0].startswith("red circle on green.png ")
    assert all("DATA:IMAGE/PNG;BASE64," in line for line in (*drawn, own))
    assert own.startswith("pixel.png ")
