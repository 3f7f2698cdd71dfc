"""Scripts declare what they use, numbers stand in Python, and one statement writes statuses."""

import re
from pathlib import Path

import pytest

from shared.lifecycle import FINAL, TRANSITIONS
from shared.state.script_texts import (
    CONSTANTS,
    FOLDER,
    LIFECYCLE,
    library,
    needs,
    texts,
    without_comments,
)

_SCRIPTS = sorted(FOLDER.glob("*.lua"))
_LIBRARIES = sorted((FOLDER / "lib").glob("*.lua"))
_FILES = [*_SCRIPTS, *_LIBRARIES]
_NAMES = [path.stem for path in _LIBRARIES] + [LIFECYCLE]
#: What a file defines for others stands at the beginning of a line.
_EXPORT = re.compile(r"^local (?:function )?(\w+(?:, \w+)*)", re.MULTILINE)
_LOCAL = re.compile(r"\blocal (?:function )?(\w+(?:, \w+)*)")
_WORD = re.compile(r"(?<![.\w])[a-zA-Z_]\w*")
_STRING = re.compile(r"'[^'\n]*'")
_NUMBER = re.compile(r"(?<![\w.\[])\d+(?:\.\d+)?(?![\w.])")
#: Units of time, the base and the length of ids, and a correction of rounding.
_PLAIN_NUMBERS = {"16", "32", "1000", "1000000", "0.001"}
#: Positions in commit's arguments, which only that script knows.
_POSITIONS = {("claim", "11"), ("commit", "13"), ("reserve_batch", "10")}


@pytest.mark.parametrize("path", _FILES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_a_file_declares_the_libraries_whose_names_it_uses_and_no_others(path: Path) -> None:
    used = {name for name in _NAMES if name != path.stem or path in _SCRIPTS}
    used = {name for name in used if _exports(library(name)) & _words(path)}

    assert sorted(used - {_own(path)}) == sorted(needs(path.read_text()))


@pytest.mark.parametrize("path", _FILES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_no_file_gives_a_name_of_a_library_another_meaning(path: Path) -> None:
    others = set().union(*(_exports(library(name)) for name in _NAMES if name != _own(path)))
    others |= set(CONSTANTS)
    if path.stem != "prelude":
        others |= _exports((FOLDER / "prelude.lua").read_text())

    assert _defined(path) & others == set()


def test_what_a_library_or_the_prelude_defines_is_used() -> None:
    words = {path: _words(path) for path in _FILES}
    unused = {
        name
        for path in [*_LIBRARIES, FOLDER / "prelude.lua"]
        for name in _exports(path.read_text())
        if not any(name in found for other, found in words.items() if other != path)
        and without_comments(path.read_text()).count(name) == 1
    }

    assert unused == set()


def test_numbers_that_scripts_share_with_python_stand_in_python_alone() -> None:
    found = {
        (path.stem, number)
        for path in _FILES
        for number in _NUMBER.findall(_STRING.sub("''", without_comments(path.read_text())))
        if len(number) > 1 and number not in _PLAIN_NUMBERS
    }

    assert found - _POSITIONS == set()


def test_each_constant_is_used_and_each_name_in_capitals_is_known() -> None:
    capitals = {
        word
        for path in _FILES
        for word in _words(path)
        if re.fullmatch(r"[A-Z][A-Z_]{2,}", word) and word not in {"KEYS", "ARGV"}
    }
    own = set().union(*(_defined(path) for path in _FILES)) | _exports(library(LIFECYCLE))

    assert set(CONSTANTS) == capitals - own


def test_the_lifecycle_table_has_every_transition() -> None:
    table = library(LIFECYCLE)

    for event, row in TRANSITIONS.items():
        assert re.search(rf"\b{event} = {{target = '{row.target}'", table)
    for status in FINAL:
        assert f"{status} = true" in table.rpartition("FINAL")[2]


def test_one_statement_writes_a_status_after_a_batchs_creation() -> None:
    writes = re.compile(r"'HSET', key, 'status', (\S+),")
    found = {
        (path.stem, value)
        for path in _FILES
        if path.stem != "end_upload"
        for value in writes.findall(path.read_text())
    }

    assert found == {("acceptance", "'validating'"), ("transition", "row.target")}


def test_a_script_has_only_what_it_needs() -> None:
    found = texts()

    assert set(found) == {path.stem for path in _SCRIPTS} - {"prelude"}
    assert "TRANSITIONS" not in found["claim"]
    assert found["apply"].index("local TRANSITIONS") < found["apply"].index("function transition")
    assert found["commit"].count("local function pending_key") == 1
    assert len(found["lease"]) < 2000


def _own(path: Path) -> str:
    return path.stem if path in _LIBRARIES else ""


def _code(path: Path) -> str:
    return _STRING.sub("''", without_comments(path.read_text()))


def _words(path: Path) -> set[str]:
    return set(_WORD.findall(_code(path)))


def _exports(text: str) -> set[str]:
    return {name for names in _EXPORT.findall(without_comments(text)) for name in names.split(", ")}


def _defined(path: Path) -> set[str]:
    return {name for names in _LOCAL.findall(_code(path)) for name in names.split(", ")}
