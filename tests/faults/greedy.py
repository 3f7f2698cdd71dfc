"""`python -m tests.faults.greedy URL TENANT SECONDS`: a tenant that does its worst at the broker.

Prints as JSON how often it tried what, and the broker's words for what was refused.
"""

import asyncio
import json
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

import aio_pika
from aio_pika.abc import AbstractConnection
from aiormq.exceptions import AMQPError

from shared.bus import topology

#: Connections that are held to the end; as many are tried as the broker allows.
_HELD = 5
_LARGE = bytes(5 * 1024 * 1024)
_PAUSE_SECONDS = 0.02
#: On a busy machine it goes on for so much longer, until each thing was refused once.
_MORE_SECONDS = 90.0
_REFUSED = (
    "connections",
    "channels",
    "queues",
    "exchanges",
    "bindings",
    "dead-lettering",
    "large message",
)


class Greedy:
    def __init__(self, url: str, tenant: str, ends: float) -> None:
        self._url = url
        self._tenant = tenant
        self._ends = ends
        self.tried: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.refused: defaultdict[str, set[str]] = defaultdict(set)

    async def run(self) -> None:
        """Everything at once, until the time is up and each thing was refused."""
        await asyncio.gather(
            self._connections(),
            self._repeat("channels", self._channels),
            self._repeat("queues", self._declared_queue),
            self._repeat("exchanges", self._declared_exchange),
            self._repeat("bindings", self._binding),
            self._repeat("dead-lettering", self._dead_lettering),
            self._repeat("large message", self._large_message),
            self._megabytes(),
        )

    @property
    def _is_over(self) -> bool:
        late = time.monotonic() - self._ends
        return late > 0 and (all(map(self.refused.get, _REFUSED)) or late > _MORE_SECONDS)

    async def _connections(self) -> None:
        held: list[AbstractConnection] = []
        while not self._is_over:
            async with self._trying("connections"):
                held.append(await aio_pika.connect(self._url, timeout=20))
            await asyncio.sleep(_PAUSE_SECONDS)
            if self.refused["connections"]:
                # The other tries need some, too.
                while len(held) > _HELD:
                    await held.pop().close()
        for one in held:
            await one.close()

    async def _repeat(
        self, what: str, act: Callable[[AbstractConnection], Awaitable[object]]
    ) -> None:
        while not self._is_over:
            async with self._trying(what), await aio_pika.connect(self._url, timeout=20) as link:
                await act(link)
            await asyncio.sleep(_PAUSE_SECONDS)

    async def _channels(self, link: AbstractConnection) -> None:
        for _ in range(1000):
            await link.channel()

    async def _declared_queue(self, link: AbstractConnection) -> None:
        channel = await link.channel()
        await channel.declare_queue(f"sub.{self._tenant}.{self.tried['queues']}", durable=True)

    async def _declared_exchange(self, link: AbstractConnection) -> None:
        channel = await link.channel()
        await channel.declare_exchange(f"sub.{self._tenant}.main", aio_pika.ExchangeType.FANOUT)

    async def _binding(self, link: AbstractConnection) -> None:
        queue = await (await link.channel()).get_queue(f"sub.{self._tenant}.main")
        # The broker keeps the arguments of each in memory.
        key = f"batch.*.{self._tenant}.{self.tried['bindings']}"
        arguments: dict[str, Any] = {"x": "x" * 100_000}
        await queue.bind(topology.EVENTS_EXCHANGE, key, arguments=arguments)

    async def _dead_lettering(self, link: AbstractConnection) -> None:
        channel = await link.channel()
        loop: dict[str, Any] = {
            "x-dead-letter-exchange": topology.SUBMIT_EXCHANGE,
            "x-message-ttl": 0,
        }
        await channel.declare_queue(f"sub.{self._tenant}.loop", arguments=loop)

    async def _large_message(self, link: AbstractConnection) -> None:
        channel = await link.channel()
        exchange = await channel.get_exchange(topology.SUBMIT_EXCHANGE, ensure=False)
        await exchange.publish(aio_pika.Message(_LARGE), topology.submit_key(self._tenant))

    async def _megabytes(self) -> None:
        """Have megabytes of refusals sent to a queue that nobody reads."""
        while not self._is_over:
            async with self._trying("megabytes"), await aio_pika.connect(self._url) as link:
                channel = await link.channel()
                exchange = await channel.get_exchange(topology.SUBMIT_EXCHANGE, ensure=False)
                while not self._is_over:
                    message = aio_pika.Message(
                        b"{" + b" " * 100_000,
                        user_id=self._tenant,
                        reply_to=f"reply.{self._tenant}.main",
                        message_id="m" * 200,
                    )
                    await exchange.publish(message, topology.submit_key(self._tenant))
                    self.done["megabytes"] += 1
                    await asyncio.sleep(_PAUSE_SECONDS)

    def _trying(self, what: str) -> "_Try":
        return _Try(self, what)


class _Try:
    """Counts one try, and keeps what refused it."""

    def __init__(self, greedy: Greedy, what: str) -> None:
        self._greedy = greedy
        self._what = what

    async def __aenter__(self) -> None:
        self._greedy.tried[self._what] += 1

    async def __aexit__(self, kind: object, error: BaseException | None, _: object) -> bool:
        if error is None:
            self._greedy.done[self._what] += 1
            return False
        is_refusal = isinstance(error, AMQPError | OSError | RuntimeError)
        if is_refusal:
            # Without numbers, so that what differs only by its name counts once.
            words = re.sub(r"\.\d+'", ".N'", f"{type(error).__name__}: {error}")
            self._greedy.refused[self._what].add(words[:200])
        return is_refusal


def main() -> None:
    url, tenant, seconds = sys.argv[1:]
    greedy = Greedy(url, tenant, time.monotonic() + float(seconds))
    asyncio.run(greedy.run())
    refused = {what: sorted(words) for what, words in greedy.refused.items()}
    report = {"tried": greedy.tried, "done": greedy.done, "refused": refused}
    print(json.dumps(report))  # noqa: T201  # its output is its result


if __name__ == "__main__":
    main()
