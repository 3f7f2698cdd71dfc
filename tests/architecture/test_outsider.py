"""The outsider knows the product from its documents alone: nothing that it imports is ours."""

import ast
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_OURS = {"gateway", "dispatcher", "worker", "cli", "shared", "batchyard", "benchmarks"}


def test_nothing_that_the_outsider_imports_is_of_the_product() -> None:
    reached = _reached({f"tests.outsider.{path.stem}" for path in _own_modules()})

    assert len(reached) > len(_own_modules())
    imported = {name.partition(".")[0] for module in reached for name in _imports(module)}
    assert imported & _OURS == set()
    assert {"aio_pika", "httpx"} <= imported


def _own_modules() -> list[Path]:
    return [
        path
        for path in (_ROOT / "tests/outsider").glob("*.py")
        if not path.name.startswith("test_")
    ]


def _reached(modules: set[str]) -> set[str]:
    """These modules of the tests, and all that they import of the tests, near or far."""
    reached, waiting = set[str](), modules
    while waiting:
        module = waiting.pop()
        if module.startswith("tests") and module not in reached and _path(module).is_file():
            reached.add(module)
            waiting |= set(_imports(module)) | {module.rpartition(".")[0]}
    return reached


def _imports(module: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(_path(module).read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


def _path(module: str) -> Path:
    path = _ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
