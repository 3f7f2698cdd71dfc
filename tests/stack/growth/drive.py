"""Runs in the head's container, where it is what a lane job and gateways are to the engine.

`story`: live calls come and go beside a batch; prints what was seen. `door`: prints where the
engine takes live calls.
"""

import asyncio
import itertools
import json
import logging
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import httpx
import msgspec
import ray

from shared.catalog import Catalog, Lane
from shared.doors import Door
from tests.engine.calls import Call, live_client
from worker.engine_client import EngineClient
from worker.engine_deployment import ensure_engine
from worker.engine_errors import EngineUnavailableError
from worker.engine_status import engine_state
from worker.outcomes import outcome

LANE = Lane("tiny", "growing")
SEATS, LIVE_SEATS = 17, 1
#: More than three quarters of the places of one engine, and less than those of two.
PEOPLE = 20
ROWS, TOKENS = 300, 300
_SECONDS = 900.0
_CATALOG = Catalog.model_validate(
    {
        "pools": {LANE.pool: {"resources": {"CPU": 1, "card": 1}}},
        "models": {
            LANE.model: {
                "source": "/models/tiny",
                "pools": [LANE.pool],
                "live": {"seats": LIVE_SEATS},
                "max_replicas": 2,
                "idle_seconds": 5,
                "drain_seconds": 600,
                "engine": {
                    "max_model_len": 1024,
                    "max_num_seqs": SEATS,
                    "enforce_eager": True,
                    "dtype": "float32",
                },
                "env": {"VLLM_CPU_KVCACHE_SPACE": 1, "TORCH_COMPILE_DISABLE": 1},
            }
        },
    }
)


class Seen(NamedTuple):
    """How much there is of the pool."""

    #: Machines with a card, as Ray knows them.
    nodes: int
    #: Engines that run.
    replicas: int


class People:
    """Callers at the doors, each with one stream after another until `stop`."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._doors: list[Door] = []
        self._stopping = asyncio.Event()
        self._turns = itertools.count()
        self.streams = 0
        #: Streams without their end, and what was answered in place of one.
        self.broken: list[str] = []
        self._tasks = [asyncio.create_task(self._ask()) for _ in range(PEOPLE)]
        self._tasks.append(asyncio.create_task(self._look()))

    async def stop(self) -> None:
        """Return when the last streams have ended."""
        self._stopping.set()
        await asyncio.gather(*self._tasks)

    async def _look(self) -> None:
        """As lane jobs show doors to gateways."""
        while not self._stopping.is_set():
            # One that has just come or gone may not answer.
            with suppress(EngineUnavailableError):
                self._doors = await self._client.doors()
            await asyncio.sleep(0.5)

    async def _ask(self) -> None:
        while not self._stopping.is_set():
            if not self._doors:
                await asyncio.sleep(0.1)
                continue
            try:
                await self._stream(self._doors[next(self._turns) % len(self._doors)])
            except httpx.HTTPError as error:
                self.broken.append(repr(error))

    async def _stream(self, door: Door) -> None:
        async with (
            live_client(door) as client,
            client.stream("POST", "/v1/chat/completions", json=_BODY) as answer,
        ):
            if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
                # It is being drained: the next one.
                return
            lines = [line async for line in answer.aiter_lines() if line]
        self.streams += 1
        if lines[-1:] != ["data: [DONE]"]:
            self.broken.append(f"{answer.status_code}: {lines[-1:]}")


_BODY = {
    "model": LANE.model,
    "messages": [{"role": "user", "content": "Tell me about trains, please."}],
    "max_tokens": 200,
    "ignore_eos": True,
    "stream": True,
}


async def door() -> dict[str, Any]:
    """Of the only replica."""
    engine = await _engine()
    await asyncio.wait_for(Call(engine, "first", [1]).task, _SECONDS)
    [found] = await EngineClient(engine).doors()
    return msgspec.structs.asdict(found)


async def story() -> dict[str, Any]:
    """Each part of the story, and what was seen in it."""
    engine = await _engine()
    client, told = EngineClient(engine), dict[str, Any]()

    # Ray's has no types.
    alive: Callable[[], list[dict[str, Any]]] = ray.nodes

    def seen() -> Seen:
        nodes = [one for one in alive() if one["Alive"] and "card" in one["Resources"]]
        state = engine_state(engine)
        return Seen(len(nodes), state.running if state else 0)

    async def until(condition: Callable[[Seen], bool], what: str) -> None:
        deadline = time.monotonic() + _SECONDS
        # Each look asks Serve's controller and Ray's head, which have other work.
        while not condition(found := await asyncio.to_thread(seen)):
            if time.monotonic() > deadline:
                raise AssertionError(f"not {what}: {found}, {told}")
            await asyncio.sleep(1)
        told[what] = found
        sys.stderr.write(f"{what}: {told[what]}\n")

    told["at first"] = seen()
    first = Call(engine, "first", [1])
    await asyncio.wait_for(first.task, _SECONDS)
    await until(lambda found: found == Seen(1, 1), "with a row")

    people = People(client)
    await until(lambda found: found == Seen(2, 2), "with live calls")

    calls = [Call(engine, f"batch{number}", [TOKENS] * ROWS) for number in range(2)]
    await until(lambda _: all(call.results for call in calls), "with rows in both")
    await people.stop()
    await until(lambda found: found.replicas == 1, "after live calls")
    ends = [await _end(call) for call in calls]
    told["ends"] = sorted(ends)
    told["statuses"] = sorted({one[0] for call in calls for one in call.results.values()})
    told["answered"] = sorted(len(call.results) for call in calls)

    left = sum(ROWS - len(call.results) for call in calls)
    again = Call(engine, "again", [1] * left)
    told["again"] = len(await again.end())
    await until(lambda found: found.nodes < 2, "with less machines")
    await until(lambda found: found == Seen(0, 0), "at last")
    return {**told, "streams": people.streams, "broken": people.broken}


async def _engine() -> str:
    """The application of the engine, which has no replica yet."""
    ray.init(address="auto", log_to_driver=False, logging_level=logging.ERROR)
    return await asyncio.to_thread(ensure_engine, _CATALOG, LANE)


async def _end(call: Call) -> str:
    """How the call of these rows has ended."""
    try:
        await asyncio.wait_for(call.task, _SECONDS)
    except EngineUnavailableError as error:
        return outcome(error).name
    return "done"


if __name__ == "__main__":
    parts = {"story": story, "door": door}
    sys.stdout.write(json.dumps(asyncio.run(parts[sys.argv[1]]())))
