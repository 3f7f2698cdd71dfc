"""The Lua scripts of `lua/`, each preceded by the lifecycle table and the shared prelude."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from redis.commands.core import AsyncScript
from redis.exceptions import NoScriptError

from shared.errors import TransientError
from shared.lifecycle import FINAL, TRANSITIONS
from shared.state.client import Client

_TRIES = 5
_FOLDER = Path(__file__).parent / "lua"


class Scripts:
    """Runs a script by name in one namespace; `KEYS[1]` is always the namespace."""

    def __init__(self, redis: Client, namespace: str) -> None:
        self._namespace = namespace
        prelude = _lifecycle_table() + (_FOLDER / "prelude.lua").read_text()
        self._scripts: dict[str, AsyncScript] = {
            path.stem: redis.register_script(prelude + path.read_text())
            for path in sorted(_FOLDER.glob("*.lua"))
            if path.stem != "prelude"
        }

    async def run(self, name: str, *arguments: str | float) -> Any:
        """What the script returns, as redis-py decodes it. Raises TransientError."""
        for _ in range(_TRIES):
            # redis-py loads a script that the server lacks, and calls it again, once: killed in
            # between, the server lacks it still. Nothing has run.
            with suppress(NoScriptError):
                return await self._scripts[name](keys=[self._namespace], args=list(arguments))
        raise TransientError("Redis forgets its scripts as soon as they are loaded.")


def _lifecycle_table() -> str:
    rows = "".join(
        f"  {event} = {{target = '{row.target}', sources = {_lua_set(row.sources)}}},\n"
        for event, row in TRANSITIONS.items()
    )
    return f"local TRANSITIONS = {{\n{rows}}}\nlocal FINAL = {_lua_set(FINAL)}\n"


def _lua_set(words: Iterable[str]) -> str:
    return "{" + ", ".join(f"{word} = true" for word in sorted(words)) + "}"
