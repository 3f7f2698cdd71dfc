"""The outbox: messages written together with a state, which are still to be published."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from shared.state.client import Client

#: `submissions` are the gateway's batch messages, `events` go to subscribers, and `replies` go to
#: the sender of a message.
Box = Literal["submissions", "events", "replies"]


@dataclass(frozen=True)
class Entry:
    """One entry. Ids give the order within a box."""

    id: str
    fields: Mapping[str, str]

    @property
    def is_of_pipeline(self) -> bool:
        """Whether it is the end of a pipeline; all others are of batches."""
        return "pipeline" in self.fields

    def snapshot(self) -> dict[str, str]:
        """The batch as it was when the entry was written; of a pipeline, only who it is."""
        return self._snapshot

    @cached_property
    def _snapshot(self) -> dict[str, str]:
        snapshot: dict[str, str] = json.loads(self.fields["snapshot"])
        return snapshot

    @classmethod
    def from_text(cls, text: str) -> "Entry":
        """Parse an event as watchers receive it. Such an entry is in no box."""
        sequence, at_ms, kind, snapshot = text.split(" ", 3)
        return cls("", {"type": kind, "sequence": sequence, "at_ms": at_ms, "snapshot": snapshot})


class Outbox:
    """The noun `outbox` of State. Entries are read in order and removed once published."""

    def __init__(self, redis: Client, namespace: str) -> None:
        self._redis = redis
        self._namespace = namespace

    async def add(self, box: Box, fields: Mapping[str, str]) -> None:
        """Write an entry without changing any state."""
        await self._redis.xadd(self._key(box), dict(fields))

    async def read(self, box: Box, *, limit: int, wait_seconds: float) -> list[Entry]:
        """The oldest entries; waits for one if there is none."""
        key = self._key(box)
        # Always from the start: published entries are removed, so a crash may repeat an entry but
        # never skips one. Redis takes 0 ms for no limit, hence the None.
        patience = int(wait_seconds * 1000) or None
        answer = await self._redis.xread({key: "0"}, count=limit, block=patience)
        streams = answer.items() if isinstance(answer, dict) else answer or []
        return [
            Entry(entry_id, fields)
            for _, entries in streams
            for entry_id, fields in _flat(entries)
            if fields is not None
        ]

    async def remove(self, box: Box, entry_ids: list[str]) -> None:
        """Forget published entries."""
        await self._redis.xdel(self._key(box), *entry_ids)

    async def length(self, box: Box) -> int:
        """How many entries wait."""
        return await self._redis.xlen(self._key(box))

    def _key(self, box: Box) -> str:
        return f"{self._namespace}outbox:{box}"


def _flat(entries: list[object]) -> list[tuple[str, dict[str, str] | None]]:
    # RESP3 answers nest each stream's entries one level deeper than RESP2's.
    return entries[0] if entries and isinstance(entries[0], list) else entries  # type: ignore[return-value]  # shapes of two protocols
