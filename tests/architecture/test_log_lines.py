"""What every line of the log about something that broke says."""

import ast

from tests.architecture.sources import ROOT, files, nodes

_LEVELS = {"warning", "error", "exception"}


def test_each_line_about_something_that_broke_names_a_code() -> None:
    found = [
        (file.relative_to(ROOT), node)
        for file in files()
        for node in nodes(file)
        if isinstance(node, ast.Call) and _is_about_a_break(node)
    ]

    assert len(found) > 5
    assert [f"{file}:{node.lineno}" for file, node in found if not _has_code(node)] == []


def _is_about_a_break(call: ast.Call) -> bool:
    match call:
        case ast.Call(ast.Attribute(ast.Name("log"), level), [ast.Constant(str(event)), *_]):
            return level in _LEVELS and event.endswith("broke")
        case _:
            return False


def _has_code(call: ast.Call) -> bool:
    """As a field of its own, or among fields that are collected before."""
    return any(keyword.arg in {"code", None} for keyword in call.keywords)
