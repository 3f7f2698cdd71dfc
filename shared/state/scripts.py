"""Runs the Lua scripts: each is one step that no other call can interrupt."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from redis.commands.core import AsyncScript
from redis.exceptions import NoScriptError

from shared.errors import TransientError
from shared.state.client import REBUILDING, Client
from shared.state.script_texts import texts

#: During a rebuild the index may be old, and changes made because of it would be undone. The check
#: is in one step with the change itself, so that no change slips in between.
_REFUSAL = f"""\
if redis.call('EXISTS', KEYS[1] .. 'rebuilding') == 1 then
  return redis.error_reply('{REBUILDING} Redis is being rebuilt from S3. Try again later.')
end
"""
#: These are not refused. Some only repeat what is in S3 already, where the rebuild finds it or has
#: nothing to say about it; the others know what to do during a rebuild.
_NEVER_REFUSED = {
    "accept",
    "add_key",
    "begin_live_call",
    "close_streams",
    "lease",
    "renew_streams",
    "revoke_key",
    "show_doors",
    "take_progress",
    "want_engine",
}


class Scripts:
    """Runs a script by its name in one namespace; `KEYS[1]` is always the namespace.

    During a rebuild, scripts raise TransientError unless `for_rebuild` is set.
    """

    def __init__(self, redis: Client, namespace: str, *, for_rebuild: bool = False) -> None:
        self._redis = redis
        self._namespace = namespace
        self._scripts: dict[str, AsyncScript] = {}
        for name, text in texts().items():
            is_free = for_rebuild or name in _NEVER_REFUSED
            self._scripts[name] = redis.register_script(text if is_free else _REFUSAL + text)

    async def run(self, name: str, *arguments: str | bytes | float) -> Any:
        """What the script returns, as redis-py decodes it."""
        with _loaded():
            return await self._scripts[name](keys=[self._namespace], args=list(arguments))

    async def run_all(self, name: str, calls: Iterable[Sequence[str | float]]) -> list[Any]:
        """What the script returns for each of the calls, in one round trip."""
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
    """Turn NoScriptError into TransientError.

    redis-py loads a missing script and runs it again, but only once. A Redis that restarts again
    and again, as on a full disk, may have forgotten the script by then.
    """
    try:
        yield
    except NoScriptError as error:
        raise TransientError("Redis has restarted and forgotten its scripts.") from error
