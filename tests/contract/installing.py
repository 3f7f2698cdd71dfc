"""Packages of other ecosystems, installed into `build/clients` by the hashes of their locks."""

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

import pytest

_INSTALLED = Path(__file__).parents[2] / "build/clients"
#: What pip and npm say of a package that is not the one of the lock.
_WRONG_HASH = ("DO NOT MATCH THE HASHES", "EINTEGRITY")
_LOCKED = re.compile(r"^([\w@/-]+)==(\S+) \\\n +--hash=(\w+):(\w+)$", re.MULTILINE)


def installed(
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
            said = error.stderr.strip().splitlines()[-3:]
            reason = f"'{name}' cannot be installed here: {' / '.join(said)}"
            if any(word in error.stderr for word in _WRONG_HASH):
                pytest.fail(reason)
            untested(reason)
        draft.rename(folder)
    return folder


def installed_by_pip(name: str, lock: Path) -> Path:
    """A folder with the lock's packages, for `PYTHONPATH`. `installed` says what if not."""

    def install(folder: Path) -> None:
        call(
            [*_pip(), "install", "--quiet", "--no-deps", "--require-hashes"],
            ["--target", str(folder), "--requirement", str(lock)],
        )

    return installed(name, [lock], install)


def installed_for_node(name: str, lock: Path) -> Path:
    """A folder with the lock's packages in `node_modules`. `installed` says what if not."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        untested("there is no Node. Install it with npm, version 20 or later.")
    return installed(name, [lock], lambda folder: _install_for_node(folder, lock))


def untested(reason: str) -> NoReturn:
    """Skip loudly; in CI, where nobody reads that, fail."""
    if os.environ.get("CI"):
        pytest.fail(f"NOT TESTED: {reason}")
    pytest.skip(f"NOT TESTED: {reason}")


def call(command: Sequence[str], rest: Sequence[str]) -> None:
    """Run to the end; raises CalledProcessError."""
    subprocess.run([*command, *rest], capture_output=True, text=True, timeout=100, check=True)


def _pip() -> list[str]:
    """This environment's, or that of the Python below it: bare Debian's environments have none."""
    for python in (sys.executable, str(getattr(sys, "_base_executable", sys.executable))):
        if not subprocess.run([python, "-m", "pip", "--version"], capture_output=True).returncode:  # noqa: PLW1510  # its code is the answer
            return [python, "-m", "pip"]
    return untested("there is no pip to install Python's packages with.")


def _install_for_node(folder: Path, lock: Path) -> None:
    """By npm's own lock, made here of ours; npm holds what it gets against the hash."""
    locked = _LOCKED.findall(lock.read_text())
    wanted = {name: version for name, version, _, _ in locked}
    packages = {
        f"node_modules/{name}": {
            "version": version,
            "integrity": f"{kind}-{base64.b64encode(bytes.fromhex(digest)).decode()}",
        }
        for name, version, kind, digest in locked
    }
    (folder / "package.json").write_text(json.dumps({"private": True, "dependencies": wanted}))
    made = {"lockfileVersion": 3, "packages": {"": {"dependencies": wanted}, **packages}}
    (folder / "package-lock.json").write_text(json.dumps(made))
    call(["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"], ["--prefix", str(folder)])
