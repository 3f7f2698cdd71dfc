"""The Python files of the product and what stands in them, each parsed once for all tests."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("gateway", "dispatcher", "worker", "cli", "shared", "batchyard")


@cache
def files(*rooms: str) -> tuple[Path, ...]:
    """The Python files of the named rooms, or of all."""
    return tuple(file for room in rooms or ROOMS for file in sorted((ROOT / room).rglob("*.py")))


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@cache
def nodes(file: Path) -> tuple[ast.AST, ...]:
    """Every node of a file's tree, as `ast.walk` gives them."""
    return tuple(ast.walk(tree(file)))
