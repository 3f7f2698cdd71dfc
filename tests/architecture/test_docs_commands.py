"""Every command that README and docs show exists, with its options."""

import re
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from cli.__main__ import app
from cli.operators import Unloaded

_ROOT = Path(__file__).parents[2]
_PAGES = sorted([*_ROOT.glob("*.md"), *(_ROOT / "docs").rglob("*.md")])
_FOREIGN_MODULES = {"pip", "pytest", "venv"}
#: Text between backticks, in a line or as a block.
_CODE = re.compile(r"^```.*?\n(.*?)^```|`([^`\n]+)`", re.MULTILINE | re.DOTALL)
_SERVICES = yaml.safe_load((_ROOT / "compose.yaml").read_text())["services"]
_WITH_SERVICES = {"up", "logs", "restart", "stop", "start", "kill", "build", "create"}
_WITH_VALUES = {"-f", "-p", "--entrypoint", "--env", "--user", "--timeout"}
#: Folders that a page has its reader create, named by the files that it shows.
_MADE = {
    folder
    for page in _PAGES
    for folder in re.findall(r"^# (k8s/\S+)/kustomization\.yaml$", page.read_text(), re.MULTILINE)
}
_TARGETS = set(re.findall(r"^([a-z-]+):", (_ROOT / "Makefile").read_text(), re.MULTILINE))
_WORKLOADS = {
    f"{document['kind'].lower()}/{document['metadata']['name']}"
    for file in (_ROOT / "k8s").rglob("*.yaml")
    for document in yaml.safe_load_all(file.read_text())
    if isinstance(document, dict) and "kind" in document and "name" in document.get("metadata", {})
}


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(_ROOT)))
def test_every_command_that_a_page_shows_exists(page: Path) -> None:
    assert [wrong for line in _lines(page.read_text()) for wrong in _wrong(line)] == []


@pytest.mark.parametrize(
    "line",
    [
        "make tests",
        "batchyard key create --tenant acme",
        "batchyard keys make --tenant acme",
        "batchyard keys create --tennant acme",
        "python -m benchmark",
        "docker compose exec postgres true",
        "docker compose up ray",
        "kubectl apply -k k8s/overlays/staging",
        "kubectl -n batchyard rollout restart deployment/gatevay",
    ],
)
def test_what_does_not_exist_is_found(line: str) -> None:
    assert list(_wrong(line))


def _lines(text: str) -> Iterator[str]:
    for block, span in _CODE.findall(text):
        # A line that ends with a backslash continues on the next one.
        yield from (block or span).replace("\\\n", " ").splitlines()


def _wrong(line: str) -> Iterator[str]:
    # Comments, which a shell ignores.
    line = re.sub(r"\s#\s.*", "", line)
    for problem in chain.from_iterable(
        look(line) for look in (_make, _python, _ours, _compose, _kube)
    ):
        yield f"{problem}: {line.strip()}"


def _make(line: str) -> Iterator[str]:
    for target in re.findall(r"(?:^|[\s&;])make ([a-z][a-z-]*)", line):
        if target not in _TARGETS:
            yield f"make has no target {target}"


def _python(line: str) -> Iterator[str]:
    for module in re.findall(r"python3? -m ([\w.]+)", line):
        path = _ROOT / module.replace(".", "/")
        is_ours = path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()
        if not is_ours and module not in _FOREIGN_MODULES:
            yield f"there is no {module}"


def _ours(line: str) -> Iterator[str]:
    """`batchyard …`; several commands may be named as `create|list`."""
    for arguments in re.findall(r"(?:^|(?<!-n)[\s/])batchyard ([a-z][^;&`]*)", line):
        command = _batchyard()
        words = arguments.partition(" | ")[0].split()
        while words and (commands := getattr(command, "commands", None)):
            names = words.pop(0).split("|")
            yield from (f"no command {name}" for name in names if name not in commands)
            command = commands.get(names[-1])
            if isinstance(command, Unloaded):
                command = command.load()
        if command is None or command.context_settings.get("ignore_unknown_options"):
            continue
        options = {option for parameter in command.params for option in parameter.opts}
        for word in words:
            option = word.partition("=")[0].strip("[]()")
            if option.startswith("--") and option not in {*options, "--help"}:
                yield f"no option {option}"


@cache
def _batchyard() -> Any:
    # Typer's own shapes, which are not click's.
    return typer.main.get_command(app)


def _compose(line: str) -> Iterator[str]:
    """`docker compose …`: services that compose.yaml does not have."""
    for arguments in re.findall(r"docker compose ([^|;&<>)]+)", line):
        words = arguments.split()
        for option in _WITH_VALUES & set(words):
            del words[words.index(option) : words.index(option) + 2]
        command, *names = [word for word in words if not word.startswith("-")]
        if command in ("exec", "run"):
            names = names[:1]
        elif command not in _WITH_SERVICES:
            names = []
        yield from (f"no service {name}" for name in names if name not in _SERVICES)


def _kube(line: str) -> Iterator[str]:
    if "kubectl" not in line:
        return
    for folder in re.findall(r" -k (\w\S*)", line):
        if folder not in _MADE and not (_ROOT / folder / "kustomization.yaml").is_file():
            yield f"there is no {folder}"
    for workload in re.findall(r"\b((?:deployment|statefulset|raycluster)/[\w-]+)", line):
        if workload not in _WORKLOADS:
            yield f"there is no {workload}"
