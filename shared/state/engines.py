"""The engines as the leading dispatcher last saw them, and their GPU seconds by the day."""

import json
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from shared.engines import EngineRecord, EngineSeconds, ReplicaNumbers
from shared.rows_in_engine import FRESH_SECONDS, RowsInEngine, together
from shared.state.client import Client
from shared.state.scripts import Scripts

#: The field that has the number of the last look; lanes have names.
_LOOK = ""
_STARTING, _TOTAL, _ROWS, _LIVE = "starting", "total", "rows", "live"


class Look(NamedTuple):
    """What was recorded at one look, by the engine's own lane; `number` counts the looks."""

    number: int
    engines: Mapping[str, EngineRecord]


class Engines:
    """The noun `engine` of State."""

    def __init__(self, redis: Client, scripts: Scripts, namespace: str) -> None:
        self._redis = redis
        self._scripts = scripts
        self._namespace = namespace

    async def last(self) -> Look:
        """The newest look; without engines if there was none."""
        found = await self._redis.hgetall(f"{self._namespace}engines")
        number = int(found.pop(_LOOK, 0))
        return Look(
            number,
            {lane: msgspec.json.decode(text, type=EngineRecord) for lane, text in found.items()},
        )

    async def one(self, lane: str) -> EngineRecord | None:
        """The engine of the lane; None if it is not deployed."""
        text = await self._redis.hget(f"{self._namespace}engines", lane)
        return None if text is None else msgspec.json.decode(text, type=EngineRecord)

    async def look(
        self,
        before: int,
        engines: Sequence[EngineRecord],
        seconds: Sequence[EngineSeconds],
        *,
        day: int,
    ) -> bool:
        """Record a look, and add the seconds since the look with the number `before` to the day.

        Days are counted from 1970. Returns False if that was not the last look.
        """
        records = {one.lane: msgspec.json.encode(one).decode() for one in engines}
        added = [part for one in seconds for part in (one.lane, one.starting, one.total)]
        done = await self._scripts.run("look_at_engines", before, day, json.dumps(records), *added)
        return bool(done)

    async def count(self, lane: str, found: Sequence[ReplicaNumbers]) -> None:
        """Record what replicas have counted, and add what is new of it to the fleet's counters.

        Safe to repeat. `lane` is the engine's own.
        """
        told = [part for one in found for part in (one.replica, msgspec.json.encode(one))]
        await self._scripts.run("count_numbers", lane, *told)

    async def rows_inside(self, lanes: Collection[str]) -> dict[str, RowsInEngine]:
        """How far the rows of batches are in the engines of these lanes, as they said just now."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for lane in lanes:
                pipe.hvals(f"{self._namespace}lane:{lane}:numbers")
            texts = [text for some in await pipe.execute() for text in some]
        told = [text.partition(" ") for text in texts]
        fresh_ms = 1000 * (time.time() - FRESH_SECONDS)
        found: defaultdict[str, list[RowsInEngine]] = defaultdict(list)
        for at_ms, _, numbers in told:
            if int(at_ms) > fresh_ms:
                replica = msgspec.json.decode(numbers, type=ReplicaNumbers)
                for batch_id, rows in replica.batches.items():
                    found[batch_id].append(rows)
        return {batch_id: together(some) for batch_id, some in found.items()}

    async def seconds(self, day: int) -> list[EngineSeconds]:
        """The GPU seconds of each engine on that day, in microseconds."""
        found = await self._redis.hgetall(f"{self._namespace}engine-seconds:{day}")
        lanes = sorted({field.rpartition(" ")[0] for field in found})
        return [
            EngineSeconds(
                lane,
                int(found.get(f"{lane} {_STARTING}", 0)),
                int(found.get(f"{lane} {_TOTAL}", 0)),
                int(found.get(f"{lane} {_ROWS}", 0)),
                int(found.get(f"{lane} {_LIVE}", 0)),
            )
            for lane in lanes
        ]
