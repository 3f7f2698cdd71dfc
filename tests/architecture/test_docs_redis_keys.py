"""docs/redis-keys.md against the scripts and the Python that name keys."""

import re
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_STATE = _ROOT / "shared/state"
_PAGE = (_ROOT / "docs/redis-keys.md").read_text()
_IN_LUA = re.compile(r"\bns \.\. '([a-z_:-]+)'")
_LANE_IN_LUA = re.compile(r"lane_key\([^,]+, '([a-z]+)")
_IN_PYTHON = re.compile(r"\{(?:ns|self\._namespace|namespace)\}([a-z_:-]+)")


def test_every_key_of_the_code_is_on_the_page() -> None:
    documented = _documented()

    unknown = {key for key in _named() if not any(_is(key, known) for known in documented)}

    assert unknown == set()


def test_every_key_on_the_page_is_in_the_code() -> None:
    code = "".join(
        path.read_text()
        for pattern in ("*.py", "lua/*.lua", "lua/lib/*.lua")
        for path in _STATE.glob(pattern)
    )

    # A name is cut where a variable begins.
    stale = {
        key
        for key in _documented()
        if not re.search(rf"[}}'\"]{re.escape(key.partition('<')[0].removeprefix('lane:'))}", code)
        and not re.search(rf"['\"]{key.rpartition(':')[2]}['\"]", code)
    }

    assert stale == set()


def _is(key: str, known: str) -> bool:
    """Whether the key is the known one, or a beginning of it that continues with a variable."""
    pattern = re.sub("<[a-z]+>", "[^:]+", known)
    return known.startswith(key) or re.match(pattern, key + "x") is not None


def _documented() -> set[str]:
    cells = re.findall(r"^\| (`[^|]+) \|", _PAGE, flags=re.MULTILINE)
    return {key for cell in cells for key in re.findall(r"`([^`]+)`", cell)}


def _named() -> set[str]:
    """Keys as the code names them, cut where a variable begins."""
    lua = "".join(path.read_text() for path in _STATE.rglob("*.lua"))
    found = set(_IN_LUA.findall(lua))
    found |= {f"lane:<l>:{what}" for what in _LANE_IN_LUA.findall(lua)}
    python = "".join(path.read_text() for path in _STATE.glob("*.py"))
    return found | {key for key in _IN_PYTHON.findall(python) if key != "lane:"}
