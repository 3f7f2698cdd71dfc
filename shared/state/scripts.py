"""The Lua scripts of `lua/`, each preceded by the lifecycle table and the shared prelude."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from redis.commands.core import AsyncScript
from redis.exceptions import NoScriptError

from shared.errors import TransientError
from shared.lifecycle import FINAL, TRANSITIONS
from shared.state.client import REBUILDING, Client

_FOLDER = Path(__file__).parent / "lua"
#: While the index is made again from S3, what it says may be old, and what would be changed by that
#: would be undone. In one step with the change itself, so that none slips in between.
_REFUSAL = f"""\
if redis.call('EXISTS', KEYS[1] .. 'rebuilding') == 1 then
  return redis.error_reply('{REBUILDING} The index of this fleet is being made again.')
end
"""
#: Those that are not refused: some only repeat what lies in S3 already, where a rebuild finds it or
#: has nothing to say about it; the others know by themselves what to do meanwhile.
_NEVER_REFUSED = {"accept", "add_key", "revoke_key", "lease", "take_progress"}


class Scripts:
    """Runs a script by name in one namespace; `KEYS[1]` is always the namespace.

    While the index is made again they raise TransientError, except for whoever makes it.
    """

    def __init__(self, redis: Client, namespace: str, *, for_rebuild: bool = False) -> None:
        self._redis = redis
        self._namespace = namespace
        self._scripts: dict[str, AsyncScript] = {}
        for name, text in _texts().items():
            is_free = for_rebuild or name in _NEVER_REFUSED
            self._scripts[name] = redis.register_script(text if is_free else _REFUSAL + text)

    async def run(self, name: str, *arguments: str | bytes | float) -> Any:
        """What the script returns, as redis-py decodes it."""
        with _loaded():
            return await self._scripts[name](keys=[self._namespace], args=list(arguments))

    async def run_all(self, name: str, calls: Iterable[Sequence[str | float]]) -> list[Any]:
        """What the script returns to each of the calls, in one round trip."""
        with _loaded():
            async with self._redis.pipeline(transaction=False) as pipe:
                for arguments in calls:
                    await self._scripts[name](
                        keys=[self._namespace], args=list(arguments), client=pipe
                    )
                return await pipe.execute()


def pairs(fields: Mapping[str, str | float]) -> list[str]:
    """Names and values in turn, as scripts take a hash."""
    return [str(part) for pair in fields.items() for part in pair]


@contextmanager
def _loaded() -> Iterator[None]:
    """redis-py loads a script that Redis does not have, and runs it again, once.

    A Redis that starts again and again, as on a full disk, may have forgotten it by then.
    """
    try:
        yield
    except NoScriptError as error:
        raise TransientError("Redis has started again and forgotten its scripts.") from error


@cache
def _texts() -> Mapping[str, str]:
    """Each script by its name, with what all of them use."""
    prelude = _lifecycle_table() + (_FOLDER / "prelude.lua").read_text()
    return {
        path.stem: prelude + path.read_text()
        for path in sorted(_FOLDER.glob("*.lua"))
        if path.stem != "prelude"
    }


def _lifecycle_table() -> str:
    rows = "".join(
        f"  {event} = {{target = '{row.target}', sources = {_lua_set(row.sources)}}},\n"
        for event, row in TRANSITIONS.items()
    )
    return f"local TRANSITIONS = {{\n{rows}}}\nlocal FINAL = {_lua_set(FINAL)}\n"


def _lua_set(words: Iterable[str]) -> str:
    return "{" + ", ".join(f"{word} = true" for word in sorted(words)) + "}"
