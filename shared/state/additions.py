"""Open batches: what they have been given so far, and what comes next."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from redis.asyncio.client import Pipeline

from shared.errors import NotFoundError
from shared.slices import Slice
from shared.state.away import Away
from shared.state.batch_record import BatchRecord
from shared.state.client import Client
from shared.state.rebuilding import read_for_sure
from shared.state.scripts import Scripts

#: Names that are written in one command by a rebuild.
_MANY = 500


class Extension(NamedTuple):
    """One addition, as the index counts it."""

    number: int
    slices: Sequence[Slice] = ()
    bytes: int = 0
    prompt_tokens: int = 0
    sequences: int = 0
    is_last: bool = False


class Additions:
    """The noun `addition` of State. Names and lines are kept as digests."""

    def __init__(self, redis: Client, scripts: Scripts, namespace: str, away: Away) -> None:
        self._redis = redis
        self._scripts = scripts
        self._namespace = namespace
        self._away = away

    async def look(
        self, batch_id: str, names: Sequence[str] = ()
    ) -> tuple[BatchRecord, list[str | None]]:
        """The record, and the line of each of these names, where the batch has a row with it.

        Names and lines are digests. Raises NotFoundError, and TransientError during a rebuild, when
        both may be outdated.
        """
        fields, found = await self._read(batch_id, names)
        if not fields and await self._away.bring_back([batch_id]):
            fields, found = await self._read(batch_id, names)
        if not fields:
            raise NotFoundError(f"No batch found with id '{batch_id}'.", param="id")
        return BatchRecord(fields), found[0] if found else []

    async def _read(
        self, batch_id: str, names: Sequence[str]
    ) -> tuple[dict[str, str], list[list[str | None]]]:
        def ask(pipe: Pipeline) -> None:
            pipe.hgetall(f"{self._namespace}batch:{batch_id}")
            if names:
                pipe.hmget(f"{self._namespace}names:{batch_id}", list(names))

        fields, *found = await read_for_sure(self._redis, self._namespace, ask)
        return fields, found

    async def take(self, batch_id: str, extension: Extension, names: Mapping[str, str]) -> str:
        """Take the next addition, which is in S3 by now; `names` has the line of each of its rows.

        Returns `ok`, also for one that was taken before; `early` if one before it is missing here;
        or the status in which the batch takes none. Raises NotFoundError, and TransientError during
        a rebuild.
        """
        added = {
            "slices": [slice_.to_text() for slice_ in extension.slices],
            "rows": sum(slice_.rows for slice_ in extension.slices),
            "tokens": sum(slice_.tokens for slice_ in extension.slices),
            "bytes": extension.bytes,
            "prompt_tokens": extension.prompt_tokens,
            "sequences": extension.sequences,
            "is_last": extension.is_last,
        }
        flat = [part for pair in names.items() for part in pair]
        params: list[str | int] = [batch_id, extension.number, json.dumps(added), *flat]
        outcome: str = await self._away.found(
            batch_id, lambda: self._scripts.run("extend", *params)
        )
        if outcome == "missing":
            raise NotFoundError(f"No batch found with id '{batch_id}'.", param="id")
        return outcome

    async def restore_names(self, batch_id: str, names: Mapping[str, str]) -> None:
        """Write all names of a batch again, for a rebuild."""
        key, items = f"{self._namespace}names:{batch_id}", list(names.items())
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.unlink(key)
            for first in range(0, len(items), _MANY):
                some: dict[str, Any] = dict(items[first : first + _MANY])
                pipe.hset(key, mapping=some)
            await pipe.execute()


def name_digest(custom_id: str) -> str:
    """What is kept of a name: 96 bits, so that names of any length take little memory.

    The chance that any two of a million names share them is 7e-18.
    """
    return _digest(custom_id.encode(errors="surrogatepass"), 12)


def line_digest(line: bytes) -> str:
    """What is kept of a line, to know it again when it comes again."""
    return _digest(line, 9)


def _digest(text: bytes, size: int) -> str:
    digest = hashlib.blake2b(text, digest_size=size).digest()
    return base64.urlsafe_b64encode(digest).decode()
