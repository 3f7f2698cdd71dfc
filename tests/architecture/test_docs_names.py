"""Everything that the docs name exists: files, functions in them, linked pages and headings."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT, tree

_PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
_CODE = re.compile(r"`([\w./-]+/[\w./-]*\.(?:py|lua))(?::([\w.]+))?`")
_LINK = re.compile(r"\]\((?!\w+:)([^)#]*)(?:#([^)]+))?\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_everything_that_a_page_names_exists(page: Path) -> None:
    wrong = [*_wrong_names(page), *_wrong_links(page)]

    assert wrong == []


def test_the_way_of_a_batch_names_the_code() -> None:
    page = (ROOT / "docs/architecture.md").read_text()

    assert len(set(_CODE.findall(page))) > 30


def _wrong_names(page: Path) -> Iterator[str]:
    for file, name in _CODE.findall(page.read_text()):
        if not (ROOT / file).is_file():
            yield f"there is no {file}"
        elif name and name not in _names(ROOT / file):
            yield f"{file} has no {name}"


def _wrong_links(page: Path) -> Iterator[str]:
    for target, anchor in _LINK.findall(page.read_text()):
        linked = page.parent / target if target else page
        if not linked.exists():
            yield f"the link to {target} leads nowhere"
        elif anchor and anchor not in _anchors(linked):
            yield f"{target or page.name} has no heading {anchor}"


@cache
def _anchors(page: Path) -> frozenset[str]:
    """The headings of a page as GitHub turns them into anchors."""
    headings = _HEADING.findall(page.read_text())
    return frozenset(
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings
    )


@cache
def _names(path: Path) -> frozenset[str]:
    """The functions, classes, their methods, and constants that a file defines."""
    found: set[str] = set()
    for node in tree(path).body:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                found.add(name)
            case ast.ClassDef(name=name, body=body):
                found.add(name)
                found |= {
                    f"{name}.{member.name}"
                    for member in body
                    if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef)
                }
            case ast.AnnAssign(target=ast.Name(id=name)):
                found.add(name)
            case ast.Assign(targets=[ast.Name(id=name)]):
                found.add(name)
            case _:
                pass
    return frozenset(found)
