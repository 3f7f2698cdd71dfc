"""What the run of all tests says at its end of a part that broke, and how it is interrupted."""

import asyncio
import textwrap
from pathlib import Path

import pytest

from tests import __main__ as parts
from tests.eventually import eventually


@pytest.mark.parametrize(
    ("hook", "code", "told"),
    [
        ("", 0, ["1 passed"]),
        (
            """
            def pytest_runtest_logfinish():
                raise OSError("The disk is full.")
            """,
            3,
            ["INTERNALERROR> OSError: The disk is full.", "1 passed", "exit code 3"],
        ),
        (
            """
            import os, signal
            def pytest_runtest_logfinish():
                os.kill(os.getpid(), signal.SIGKILL)
            """,
            -9,
            ["exit code -9"],
        ),
    ],
    ids=["passed", "broken", "killed"],
)
async def test_a_part_that_broke_is_told(
    hook: str, code: int, told: list[str], tmp_path: Path
) -> None:
    (tmp_path / "conftest.py").write_text(textwrap.dedent(hook))
    (tmp_path / "test_one.py").write_text("def test_one(): pass\n")
    outcome: list[str] = []

    assert await parts.run_part("some", [str(tmp_path)], [], outcome) == code
    assert all(any(text in line for line in outcome) for text in told), outcome


async def test_an_interrupt_reaches_the_parts_that_run(tmp_path: Path) -> None:
    (tmp_path / "test_long.py").write_text(
        "import pathlib, time\n"
        "def test_long(tmp_path):\n"
        "    pathlib.Path(__file__).with_name('runs').touch()\n"
        "    time.sleep(600)\n"
    )
    part = asyncio.create_task(parts.run_part("some", [str(tmp_path)], [], []))
    await eventually((tmp_path / "runs").exists)

    parts.interrupt_parts()

    assert await part == 2


@pytest.mark.parametrize(
    ("codes", "worst"), [([0, 5], 0), ([5], 5), ([0, 1, 3], 3), ([0, -9], 1)], ids=str
)
def test_a_part_that_a_signal_ended_is_no_success(codes: list[int], worst: int) -> None:
    assert parts.worst(codes) == worst
