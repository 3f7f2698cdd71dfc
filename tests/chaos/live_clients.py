"""Those who make live calls in a run, streaming and not, and write down what they get."""

import asyncio
import itertools
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import httpx

from shared.tasks import end
from tests.chaos.fleet import TENANTS, ChaosFleet
from tests.chaos.journal import Journal
from tests.chaos.plan import GATEWAYS
from tests.chaos.rows import CHAT, request

#: The name of their journal.
JOURNAL = "live.jsonl"
_AT_ONCE = 4
#: Longer than all faults that may hit one call, on a machine that is shared with everything else.
_HANGS_SECONDS = 120.0
_PAUSE_SECONDS = 0.3
_OK = 200


class LiveCallers:
    """All of one run. Each makes one call after another until `hold`."""

    def __init__(self, fleet: ChaosFleet, *, seed: int) -> None:
        self._fleet = fleet
        self._dice = random.Random(seed)
        self._journal = Journal(fleet.run_dir / "journal" / JOURNAL)
        self._numbers = itertools.count()
        self._http: list[httpx.AsyncClient] = []
        self._may_begin = asyncio.Event()
        self._may_begin.set()
        self.counts: Counter[str] = Counter()

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[Callable[[], Any]]:
        """At work until the yielded function has been awaited, which waits for their last calls."""
        async with AsyncExitStack() as stack:
            stack.callback(self._journal.close)
            for tenant in TENANTS:
                headers = {"authorization": f"Bearer {await self._fleet.key(tenant)}"}
                for gateway in GATEWAYS:
                    url = self._fleet.url(self._fleet.link("clients", gateway))
                    http = httpx.AsyncClient(
                        base_url=url, headers=headers, timeout=2 * _HANGS_SECONDS, trust_env=False
                    )
                    self._http.append(await stack.enter_async_context(http))
            stopping = asyncio.Event()
            count = _AT_ONCE if self._fleet.has_live_calls else 0
            lives = [asyncio.create_task(self._live(stopping)) for _ in range(count)]

            async def stop() -> None:
                stopping.set()
                self._may_begin.set()
                await asyncio.gather(*lives)

            try:
                yield stop
            finally:
                await end(*lives)

    def hold(self) -> None:
        """Begin nothing until `go_on`."""
        self._may_begin.clear()

    def go_on(self) -> None:
        """Begin calls again."""
        self._may_begin.set()

    async def _live(self, stopping: asyncio.Event) -> None:
        while True:
            await self._may_begin.wait()
            if stopping.is_set():
                return
            await self._call(self._dice.choice(self._http), is_stream=self._dice.random() < 0.7)
            await asyncio.sleep(self._dice.uniform(0, _PAUSE_SECONDS))

    async def _call(self, http: httpx.AsyncClient, *, is_stream: bool) -> None:
        number, model = next(self._numbers), self._dice.choice(self._fleet.models)
        self._journal.note("asked", row=number, model=model, stream=is_stream)
        body = request("live", number, model)["body"] | ({"stream": True} if is_stream else {})
        seen: dict[str, Any] = {"end": "lost", "text": ""}
        try:
            async with asyncio.timeout(_HANGS_SECONDS):
                with suppress(httpx.TransportError):
                    async with http.stream("POST", CHAT, json=body) as answer:
                        await _read(answer, seen)
        except TimeoutError:
            seen["end"] = "hung"
        self._journal.note("ended", row=number, **seen)
        kind = "stream" if is_stream else "answer"
        self.counts[f"live {kind}s: {seen['end']}"] += 1


async def _read(answer: httpx.Response, seen: dict[str, Any]) -> None:
    """Note how the answer ends: lost with its connection, as one body, or a stream, and which."""
    is_stream = answer.headers.get("content-type", "").startswith("text/event-stream")
    if answer.status_code != _OK or not is_stream:
        body = await answer.aread()
        with suppress(ValueError):
            seen["body"] = json.loads(body)
        seen |= {"end": f"status {answer.status_code}", "status": answer.status_code}
        return
    end = "cut"
    async for line in answer.aiter_lines():
        if line == "data: [DONE]":
            end = "done"
        elif line.startswith("data: "):
            event = json.loads(line[6:])
            if "error" in event:
                end, seen["body"] = "error event", event
            else:
                seen["text"] += event["choices"][0]["delta"]["content"]
    seen["end"] = end
