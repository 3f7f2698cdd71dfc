"""The texts of the Lua scripts, put together from `lua/` and from the Python values that they use.

A script begins with `prelude.lua`. In its first line it names the libraries of `lua/lib/` that it
needs, and so does each library: `-- needs: event, slice`. The library `lifecycle` is the table of
`shared/lifecycle.py`. A constant of CONSTANTS is there wherever its name is used.
"""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from shared import retention
from shared.lifecycle import FINAL, TRANSITIONS
from shared.ordering.outlook import REMEMBERED
from shared.ordering.tenant_usage import USAGE_KINDS, USAGE_ROWS, USAGE_TENANTS
from shared.ordering.waiting_batch import AGEING_SECONDS
from shared.slices import MAX_CALL_ENTRIES

FOLDER = Path(__file__).parent / "lua"
LIFECYCLE = "lifecycle"
#: Numbers that scripts share with Python, by their names in Lua.
CONSTANTS: Mapping[str, int] = {
    "AGEING_SECONDS": AGEING_SECONDS,
    "DAY_SECONDS": retention.DAY_SECONDS,
    "DELETED_FILE_SECONDS": retention.DELETED_FILE_SECONDS,
    "DELIVERY_SECONDS": retention.DELIVERY_SECONDS,
    "DELIVERY_WINDOW_SECONDS": retention.DELIVERY_WINDOW_SECONDS,
    "ENDED_BATCH_SECONDS": retention.ENDED_BATCH_SECONDS,
    "ENDED_UPLOAD_SECONDS": retention.ENDED_UPLOAD_SECONDS,
    "EVENT_HISTORY_SECONDS": retention.EVENT_HISTORY_SECONDS,
    "HOUR_SECONDS": retention.HOUR_SECONDS,
    "FINISHED_DELIVERY_SECONDS": retention.FINISHED_DELIVERY_SECONDS,
    "LISTED_DELIVERY_SECONDS": retention.LISTED_DELIVERY_SECONDS,
    "MAX_ATTEMPTS": retention.MAX_ATTEMPTS,
    "MAX_CALL_ENTRIES": MAX_CALL_ENTRIES,
    "MAX_COST_TOKENS": retention.MAX_COST_TOKENS,
    "MAX_DEAD_ROWS": retention.MAX_DEAD_ROWS,
    "MAX_EVENTS": retention.MAX_EVENTS,
    "MAX_FORESEEN": REMEMBERED,
    "MAX_OLD_SECRETS": retention.MAX_OLD_SECRETS,
    "MAX_PACE_MARKS": retention.MAX_PACE_MARKS,
    "PROGRESS_MS": retention.PROGRESS_MS,
    "RECENT_BATCHES": retention.RECENT_BATCHES,
    "SPENT_SECONDS": retention.SPENT_SECONDS,
    "USAGE_KINDS": USAGE_KINDS,
    "USAGE_ROWS": USAGE_ROWS,
    "USAGE_TENANTS": USAGE_TENANTS,
}

_NEEDS = re.compile(r"-- needs: (.+)\n")
_COMMENT = re.compile(r"--.*")
_CONSTANT = re.compile(r"\b[A-Z][A-Z_]+\b")


@cache
def texts() -> Mapping[str, str]:
    """Each script by its name, with everything that it uses."""
    return {path.stem: _text(path) for path in sorted(FOLDER.glob("*.lua")) if path != _prelude()}


def needs(text: str) -> list[str]:
    """The libraries that a script or a library names in its first line."""
    found = _NEEDS.match(text)
    return found[1].split(", ") if found else []


def library(name: str) -> str:
    """The text of a library."""
    return lifecycle_table() if name == LIFECYCLE else (FOLDER / f"lib/{name}.lua").read_text()


def without_comments(text: str) -> str:
    """The code of a script or a library."""
    return _COMMENT.sub("", text)


def lifecycle_table() -> str:
    """The table of `shared/lifecycle.py` in Lua."""
    rows = "".join(
        f"  {event} = {{target = '{row.target}', sources = {_lua_set(row.sources)}}},\n"
        for event, row in TRANSITIONS.items()
    )
    return f"local TRANSITIONS = {{\n{rows}}}\nlocal FINAL = {_lua_set(FINAL)}\n"


def _text(path: Path) -> str:
    script = path.read_text()
    names: dict[str, None] = {}
    for name in needs(script):
        _add(name, names)
    # Redis stores and compiles what is sent, so comments stay behind.
    code = "".join(map(without_comments, (*map(library, names), script)))
    return _constants(code) + without_comments(_prelude().read_text()) + code


def _add(name: str, names: dict[str, None]) -> None:
    """The library after those that it needs."""
    for other in needs(library(name)):
        _add(other, names)
    names[name] = None


def _constants(code: str) -> str:
    used = sorted(CONSTANTS.keys() & set(_CONSTANT.findall(code)))
    return "".join(f"local {name} = {CONSTANTS[name]}\n" for name in used)


def _prelude() -> Path:
    return FOLDER / "prelude.lua"


def _lua_set(words: Iterable[str]) -> str:
    return "{" + ", ".join(f"{word} = true" for word in sorted(words)) + "}"
