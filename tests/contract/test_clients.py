"""The official SDKs, unmodified, through the whole life of batches."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import openai
import pytest

from tests.contract.conftest import MODEL, OTHER_MODEL, Caller
from tests.contract.installing import installed, installed_by_pip, installed_for_node

_ROOT = Path(__file__).parents[2]
_LIFE = Path(__file__).with_name("python_life.py")
_NODE_LIFE = Path(__file__).with_name("node") / "life.mjs"
_LOCK_2 = _ROOT / "locks/openai-2.txt"
_NODE_LOCK = _ROOT / "locks/openai-node.txt"


def test_the_python_sdk_of_the_lock_runs_it_all(acme: Caller) -> None:
    version = _run([sys.executable, "-W", "error", str(_LIFE)], acme)

    assert version == openai.__version__
    assert version.startswith("3.")


def test_the_python_sdk_before_it_runs_it_all(acme: Caller) -> None:
    folder = installed_by_pip("openai-2", _LOCK_2)

    # Without the site's packages: nothing of the newer one is seen.
    version = _run([sys.executable, "-S", str(_LIFE)], acme, {"PYTHONPATH": str(folder)})

    assert version.startswith("2.")


def test_the_node_sdk_runs_it_all(acme: Caller) -> None:
    folder = installed_for_node("node", _NODE_LOCK)
    shutil.copy(_NODE_LIFE, folder)

    version = _run(["node", "life.mjs"], acme, cwd=folder)

    assert int(version.split(".")[0]) >= 7


@pytest.mark.parametrize(
    ("said", "ci", "ends"),
    [
        ("ERROR: could not find a version", "", pytest.skip.Exception),
        ("ERROR: could not find a version", "1", pytest.fail.Exception),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", "", pytest.fail.Exception),
        ("npm ERR! code EINTEGRITY", "", pytest.fail.Exception),
    ],
)
def test_what_cannot_be_installed_is_passed_over_only_outside_of_ci(
    said: str,
    ci: str,
    ends: type[BaseException],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CI", ci)

    def install(folder: Path) -> None:
        raise subprocess.CalledProcessError(1, "pip", stderr=f"{said}\nand more")

    with pytest.raises(ends, match="'nothing' cannot be installed"):
        installed("nothing", [_NODE_LOCK], install, into=tmp_path)
    assert list(tmp_path.iterdir()) == []


def _run(
    command: Sequence[str],
    caller: Caller,
    environment: dict[str, str] | None = None,
    *,
    cwd: Path | None = None,
) -> str:
    """The last line of what the program printed; it has to succeed."""
    # The clients would rather use a proxy, or a key, of the developer's own environment.
    clean = {name: text for name, text in os.environ.items() if not name.startswith("OPENAI_")}
    ended = subprocess.run(
        [*command, MODEL, OTHER_MODEL],
        env={
            **clean,
            "OPENAI_BASE_URL": f"{caller.yard.url}/v1",
            "OPENAI_API_KEY": caller.key,
            **(environment or {}),
        },
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout.strip().splitlines()[-1]
