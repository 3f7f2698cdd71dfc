"""A test dies at every named crash point: a new point without such a test fails here."""

import ast
from collections import Counter
from collections.abc import Iterator

from tests.architecture.sources import ROOT, files, nodes
from tests.chaos.points import (
    EARLY_POINTS,
    LEAVING_POINTS,
    POINTS,
    REBUILD_POINTS,
    TOGETHER_POINTS,
)

#: The run that dies at all of POINTS; tests/chaos/test_chaos.py starts it.
_RUN = "--points"


def test_each_point_of_the_code_has_a_test_that_dies_there() -> None:
    apart = (REBUILD_POINTS, LEAVING_POINTS, TOGETHER_POINTS, EARLY_POINTS)
    tested = {name for names in (*POINTS.values(), *apart) for name in names}

    assert set(_points()) == tested
    assert f'"{_RUN}"' in (ROOT / "tests/chaos/test_chaos.py").read_text()
    assert "REBUILD_POINTS" in (ROOT / "tests/integration/cli/test_rebuild.py").read_text()
    assert "TOGETHER_POINTS" in (ROOT / "tests/integration/gateway/test_process.py").read_text()
    folder = ROOT / "tests/integration/dispatcher"
    assert "LEAVING_POINTS" in (folder / "test_leaving.py").read_text()
    assert "EARLY_POINTS" in (folder / "test_early_files.py").read_text()


def test_a_name_stands_for_one_place() -> None:
    twice = [name for name, count in Counter(_points()).items() if count > 1]

    assert twice == []


def _points() -> Iterator[str]:
    """The name in each call of `crash.point`, which must be a string literal."""
    for file in files():
        for node in nodes(file):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="crash"), attr="point"),
                    args=[ast.Constant(value=str(name))],
                ):
                    yield name
                case ast.Call(func=ast.Attribute(value=ast.Name(id="crash"), attr="point")):
                    yield f"{file.name}:{node.lineno} names no point"
                case _:
                    pass
