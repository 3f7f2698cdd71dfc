import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_TEXTS = {".py", ".toml", ".yaml", ".yml", ".md", ".sh", ".lua", ".txt", ".json", ".in", ""}
# One of Debian's packages has a registry's name: the bare name in quotes is not an address.
_REGISTRIES = re.compile(
    r"(pypi|pythonhosted|golang)[.]org|registry[.]npmjs|(ghcr|quay|docker|gcr)[.]io(?!\")"
)
_MACHINE_PATHS = re.compile(
    r"(?<![\w.$}/-])/(work|root|home/[a-z]\w*|mnt|workspace|Users/\w+)(?=/|\b)(?!\.)"
)


def test_nothing_names_a_package_registry() -> None:
    assert list(_matches(_REGISTRIES)) == []


def test_nothing_names_a_path_of_one_machine() -> None:
    assert list(_matches(_MACHINE_PATHS)) == []


_LOCKS = sorted((_ROOT / "locks").glob("*.txt"))


@pytest.mark.parametrize("lock", _LOCKS, ids=lambda path: path.name)
def test_no_lock_names_an_address(lock: Path) -> None:
    assert "://" not in lock.read_text()


@pytest.mark.parametrize("name", ["asyncapi-node", "browser-node", "bus-node", "openai-node"])
def test_the_locks_for_node_have_hashes_and_no_addresses(name: str) -> None:
    lock = (_ROOT / f"locks/{name}.txt").read_text()

    assert re.fullmatch(r"(?:[\w@/-]+==[\w.]+ \\\n +--hash=sha512:[0-9a-f]{128}\n)+", lock)


def _matches(pattern: re.Pattern[str]) -> Iterator[str]:
    for file in _tracked():
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), start=1):
            if pattern.search(line):
                yield f"{file.relative_to(_ROOT)}:{number}: {line.strip()[:100]}"


def _tracked() -> Iterator[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.split("\0"):
        file = _ROOT / name
        if name and file.suffix in _TEXTS and file.is_file():
            yield file
