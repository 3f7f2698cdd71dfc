"""Subscribes to the bus as any service would, and prints each event as it arrives."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aio_pika
from aio_pika.abc import AbstractIncomingMessage

from cli.demo.screen import Screen
from shared.bus.topology import DEMO_QUEUE, EVENTS_EXCHANGE
from shared.lifecycle import FINAL

_START_SECONDS = 20.0
_FINAL_TYPES = frozenset(f"batch.{status}" for status in FINAL)


class Listener:
    """A thread with its own connection, on a queue that its tenant has for the demo."""

    def __init__(self, url: str, tenant: str, screen: Screen) -> None:
        self._url = url
        self._tenant = tenant
        self._screen = screen
        self._expected: set[str] = set()
        self._ended: set[str] = set()
        self._changed = threading.Condition()
        self._listening = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)

    def expect(self, batch_id: str) -> None:
        """Wait for the end of this batch, too."""
        self._expected.add(batch_id)

    def wait_for_ends(self, timeout_seconds: float) -> None:
        """Return when the final event of every expected batch was shown, or time is up."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended >= self._expected, timeout_seconds)

    @contextmanager
    def listening(self) -> Iterator["Listener"]:
        """Listen while the context is open; no event is missed."""
        self._thread.start()
        try:
            self._listening.wait(_START_SECONDS)
            yield self
        finally:
            self._loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(_START_SECONDS)
            self._loop.close()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._listen())
        except (OSError, aio_pika.exceptions.AMQPError) as error:
            # The batches run without the subscriber.
            self._screen.line("events", f"cannot be shown: {error!r}", "red")
        finally:
            self._listening.set()

    async def _listen(self) -> None:
        async with await aio_pika.connect(self._url, timeout=_START_SECONDS) as connection:
            channel = await connection.channel()
            queue = await channel.get_queue(f"sub.{self._tenant}.{DEMO_QUEUE}")
            # What an earlier demo has left.
            await queue.purge()
            await queue.consume(self._show, no_ack=True)
            self._screen.line("events", f"RabbitMQ queue {queue.name} on {EVENTS_EXCHANGE}")
            self._listening.set()
            await self._stopping.wait()

    async def _show(self, message: AbstractIncomingMessage) -> None:
        event: dict[str, Any] = json.loads(message.body)
        data, batch_id = event["data"], event["subject"]
        counts = data["request_counts"]
        done = counts["completed"] + counts["failed"]
        words = [f"{event['type']:<18}", (data["metadata"] or {}).get("name", batch_id)]
        if counts["total"]:
            words.append(f"{done}/{counts['total']} rows")
        if data["usage"]["total_tokens"]:
            words.append(f"{data['usage']['total_tokens']} tokens")
        self._screen.line("event", "  ".join(words), "magenta")
        if event["type"] in _FINAL_TYPES:
            with self._changed:
                self._ended.add(batch_id)
                self._changed.notify_all()
