"""No name of the product is defined and never used.

A private name has to be used in its own file, a public one anywhere in the product or the
benchmarks. The page's templates are users too. Functions that a decorator hands to a library are
used by that library.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.architecture.sources import ROOMS, ROOT, files, nodes, tree

_USERS = (*ROOMS, "benchmarks")
#: Decorators whose functions still have to be called from this tree.
_LEAVE_IT_TO_US = {
    "asynccontextmanager",
    "cache",
    "cached_property",
    "classmethod",
    "contextmanager",
    "dataclass",
    "lru_cache",
    "override",
    "property",
    "setter",
    "staticmethod",
    "wraps",
}
#: Names that only something outside the product uses, and what that is.
_USED_ELSEWHERE = {
    "specversion": "subscribers: a field of every event",
    "owned_by": "OpenAI's clients: a field of a model",
    "status_details": "OpenAI's clients: a field of a file",
    "CLAIM_EXPIRED": "the scripts in Lua, which write the same words",
    "JOB_ENDED": "the scripts in Lua, which write the same words",
    "middle_at": "the scripts in Lua, which count how far it was off",
    "late_at": "the scripts in Lua, as above",
    "ignore_aliases": "PyYAML's dumper",
    "on_start": "the parser of forms",
    "on_finish": "the parser of forms",
    "log_message": "http.server",
    "connection_made": "asyncio's transports",
    "_running": "Ray's engine",
    "_Popen": "Python's processes",
    "_launch": "Python's processes",
    "duplicate_for_child": "Python's processes",
    "finalizer": "Python's processes",
    "add_lora_async": "vLLM's AsyncLLM",
    "get_supported_tasks_async": "vLLM's AsyncLLM",
    "BaseRowsAlone": "vLLM's workers, which are told its name",
    "spare": "torch, which calls it at the end of its import",
    "seekable": "Arrow, and Python's own readers",
    "readinto": "Python's own readers",
    "writable": "Arrow",
    "record_autoscaling_stats": "Ray Serve",
    "EvenRouter": "Ray Serve, which is told its name",
    "choose_replicas": "Ray Serve",
    "initialize_state": "Ray Serve",
    "capture_signals": "uvicorn",
    "job_log": "tests, to say why a lane job died",
    "arun": "users' programs",
    "kill_gateway": "tests that kill S3",
    "restart_gateway": "tests that kill S3",
}


#: The folder whose classes are tables: pydantic, and the check of plain lines, read every field.
_TABLES = "shared/openai/bodies"


class _Definition(NamedTuple):
    file: Path
    name: str
    line: int


def test_every_name_is_used() -> None:
    unused = [
        f"{found.file.relative_to(ROOT)}:{found.line}: {found.name}"
        for found in _definitions()
        if not _is_used(found) and found.name not in _USED_ELSEWHERE
    ]

    assert unused == []


@pytest.mark.parametrize("name", _USED_ELSEWHERE)
def test_each_exception_is_needed(name: str) -> None:
    assert any(found.name == name and not _is_used(found) for found in _definitions())


def _is_used(found: _Definition) -> bool:
    if found.name.startswith("_"):
        return found.name in _uses(found.file)
    return found.name in _shown() or any(found.name in _uses(file) for file in files(*_USERS))


@cache
def _shown() -> frozenset[str]:
    """The names inside of the marks of the page's templates."""
    texts = (path.read_text() for path in (ROOT / "gateway/ui/templates").glob("*.html"))
    marks = (mark for text in texts for mark in re.findall(r"\{[{%](.*?)[%}]\}", text, re.DOTALL))
    return frozenset(word for mark in marks for word in re.findall(r"\w+", mark))


@cache
def _definitions() -> list[_Definition]:
    return [
        _Definition(file, name, line)
        for file in files()
        for name, line in _defined(file)
        if not name.startswith("__") and name != "_" and (file, line) not in _table_fields()
    ]


@cache
def _table_fields() -> frozenset[tuple[Path, int]]:
    return frozenset(
        (file, line)
        for file in (ROOT / _TABLES).glob("*.py")
        for node in nodes(file)
        if isinstance(node, ast.ClassDef)
        for _, line in _variables(node.body)
    )


def _defined(file: Path) -> Iterator[tuple[str, int]]:
    """Functions, classes and attributes at any depth; variables of the module and of classes."""
    for node in nodes(file):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                if all(_name_of(one) in _LEAVE_IT_TO_US for one in node.decorator_list):
                    yield node.name, node.lineno
            case ast.ClassDef(body=body):
                yield node.name, node.lineno
                yield from _variables(body)
            case ast.Module(body=body):
                yield from _variables(body)
            case ast.Attribute(attr=name, value=ast.Name(id="self"), ctx=ast.Store()):
                yield name, node.lineno
            case _:
                pass


def _variables(body: list[ast.stmt]) -> Iterator[tuple[str, int]]:
    for node in body:
        match node:
            case ast.Assign(targets=targets):
                for target in targets:
                    yield from ((name, node.lineno) for name in _bound(target))
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name, node.lineno
            case _:
                pass


def _bound(target: ast.expr) -> Iterator[str]:
    for node in ast.walk(target):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _name_of(decorator: ast.expr) -> str:
    match decorator:
        case ast.Call(func=called):
            return _name_of(called)
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
        case _:
            return ""


@cache
def _uses(file: Path) -> frozenset[str]:
    """The names that a file reads, also as attributes, arguments, or whole strings."""
    exported = {
        id(text)
        for node in tree(file).body
        if isinstance(node, ast.Assign) and "__all__" in _bound(node.targets[0])
        for text in ast.walk(node.value)
    }
    found: set[str] = set()
    for node in nodes(file):
        match node:
            case ast.Name(id=name, ctx=ast.Load()) | ast.Attribute(attr=name, ctx=ast.Load()):
                found.add(name)
            case ast.keyword(arg=str(name)):
                found.add(name)
            case ast.Constant(value=str(name)) if id(node) not in exported:
                found.add(name)
            case ast.MatchClass(kwd_attrs=names):
                found.update(names)
            case _:
                pass
    return frozenset(found)
