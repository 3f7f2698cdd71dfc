"""The official SDKs, unmodified, through the whole life of batches.

What they need is installed once, by the hashes in their locks, into `build/clients`.
"""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NoReturn

import openai
import pytest

from tests.contract.conftest import MODEL, OTHER_MODEL, Caller

_ROOT = Path(__file__).parents[2]
_LIFE = Path(__file__).with_name("python_life.py")
_NODE_LIFE = Path(__file__).with_name("node") / "life.mjs"
_LOCK_2 = _ROOT / "locks/openai-2.txt"
_NODE_LOCK = _ROOT / "locks/openai-node.txt"
_INSTALLED = _ROOT / "build/clients"
#: What pip and npm say of a package that is not the one of the lock.
_WRONG_HASH = ("DO NOT MATCH THE HASHES", "EINTEGRITY")


def test_the_python_sdk_of_the_lock_runs_it_all(acme: Caller) -> None:
    version = _run([sys.executable, "-W", "error", str(_LIFE)], acme)

    assert version == openai.__version__
    assert version.startswith("3.")


def test_the_python_sdk_before_it_runs_it_all(acme: Caller) -> None:
    folder = _installed("openai-2", [_LOCK_2], _install_openai_2)

    # Without the site's packages: nothing of the newer one is seen.
    version = _run([sys.executable, "-S", str(_LIFE)], acme, {"PYTHONPATH": str(folder)})

    assert version.startswith("2.")


def test_the_node_sdk_runs_it_all(acme: Caller) -> None:
    if shutil.which("node") is None or shutil.which("npm") is None:
        _untested("there is no Node. Install it with npm, version 20 or later.")
    folder = _installed("node", [_NODE_LOCK], _install_node)
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
        _installed("nothing", [_NODE_LOCK], install, into=tmp_path)
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


def _installed(
    name: str,
    locks: Iterable[Path],
    install: Callable[[Path], None],
    *,
    into: Path = _INSTALLED,
) -> Path:
    """The folder with what the locks name; made unless it is there.

    Outside of CI its test is skipped without a network, but never over a wrong hash.
    """
    digest = hashlib.sha256(b"".join(lock.read_bytes() for lock in locks)).hexdigest()[:12]
    folder = into / f"{name}-{digest}"
    if not folder.exists():
        draft = folder.with_suffix(f".{os.getpid()}")
        draft.mkdir(parents=True)
        try:
            install(draft)
        except subprocess.CalledProcessError as error:
            shutil.rmtree(draft)
            said = error.stderr.strip().splitlines()
            reason = f"'{name}' cannot be installed here: {' / '.join(said[-3:])}"
            if any(word in error.stderr for word in _WRONG_HASH):
                pytest.fail(reason)
            _untested(reason)
        draft.rename(folder)
    return folder


def _install_openai_2(folder: Path) -> None:
    _call(
        [*_pip(), "install", "--quiet", "--no-deps", "--require-hashes"],
        ["--target", str(folder), "--requirement", str(_LOCK_2)],
    )


def _install_node(folder: Path) -> None:
    """By npm's own lock, made here of ours; npm holds what it gets against the hash."""
    locked = re.findall(
        r"^([\w-]+)==(\S+) \\\n +--hash=(\w+):(\w+)$", _NODE_LOCK.read_text(), re.MULTILINE
    )
    wanted = {name: version for name, version, _, _ in locked}
    packages = {
        f"node_modules/{name}": {
            "version": version,
            "integrity": f"{kind}-{base64.b64encode(bytes.fromhex(digest)).decode()}",
        }
        for name, version, kind, digest in locked
    }
    (folder / "package.json").write_text(json.dumps({"private": True, "dependencies": wanted}))
    lock = {"lockfileVersion": 3, "packages": {"": {"dependencies": wanted}, **packages}}
    (folder / "package-lock.json").write_text(json.dumps(lock))
    _call(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"], ["--prefix", str(folder)])


def _pip() -> list[str]:
    """This environment's, or that of the Python below it: bare Debian's environments have none."""
    for python in (sys.executable, str(getattr(sys, "_base_executable", sys.executable))):
        if not subprocess.run([python, "-m", "pip", "--version"], capture_output=True).returncode:  # noqa: PLW1510  # its code is the answer
            return [python, "-m", "pip"]
    return _untested("there is no pip to install the older SDK with.")


def _call(command: Sequence[str], rest: Sequence[str]) -> None:
    subprocess.run([*command, *rest], capture_output=True, text=True, timeout=100, check=True)


def _untested(reason: str) -> NoReturn:
    """Skip loudly; in CI, where nobody reads that, fail."""
    if os.environ.get("CI"):
        pytest.fail(f"NOT TESTED: {reason}")
    pytest.skip(f"NOT TESTED: {reason}")
