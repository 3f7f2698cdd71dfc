"""Live events: a subscription to chosen batches. Missed events are in the batches' records."""

import json
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from redis.asyncio.client import PubSub

from shared.errors import TransientError
from shared.state.client import translated

_PATIENCE_SECONDS = 5.0
#: Messages that one call of `next` returns.
_MAX_MESSAGES = 500


class Heard(NamedTuple):
    """An event of a batch. Without an event, the subscription to the batch has just (re)started."""

    batch_id: str
    sequence: int = 0
    at: float = 0.0
    kind: str = ""
    snapshot: dict[str, str] | None = None


class Watch:
    """One subscription for any number of batches. Only one task may use it."""

    def __init__(self, pubsub: PubSub, namespace: str, bell: str) -> None:
        self._pubsub = pubsub
        self._prefix = f"{namespace}watch:"
        self._bell = f"{namespace}bell:{bell}"
        self._chosen: set[str] = set()

    async def open(self) -> None:
        """Listen to the bell. Raises TransientError if Redis does not confirm it."""
        with translated():
            await self._pubsub.subscribe(self._bell)
            # A ring before the confirmation would be lost.
            if await self._pubsub.get_message(timeout=_PATIENCE_SECONDS) is None:
                raise TransientError("Redis did not confirm a subscription.")

    async def choose(self, batch_ids: Iterable[str]) -> None:
        """Subscribe to exactly these batches."""
        wanted = set(batch_ids)
        fresh, left = wanted - self._chosen, self._chosen - wanted
        with translated():
            if fresh:
                await self._pubsub.subscribe(*(self._prefix + name for name in fresh))
                self._chosen |= fresh
            if left:
                await self._pubsub.unsubscribe(*(self._prefix + name for name in left))
                self._chosen -= left

    async def next(self, seconds: float) -> list[Heard]:
        """Wait for events. Returns early, perhaps with none, when the bell rings.

        The start of a batch's subscription comes before its first event. Raises TransientError
        while Redis cannot be reached.
        """
        deadline = time.monotonic() + seconds
        messages: list[dict[str, Any]] = []
        with translated():
            # A health check of the connection reads as no message before the time is up.
            while not messages and (left := deadline - time.monotonic()) > 0:
                if (message := await self._pubsub.get_message(timeout=left)) is not None:
                    messages.append(message)
            while len(messages) < _MAX_MESSAGES:
                if (message := await self._pubsub.get_message(timeout=0)) is None:
                    break
                messages.append(message)
        return [heard for message in messages if (heard := self._heard(message)) is not None]

    def _heard(self, message: dict[str, Any]) -> Heard | None:
        channel: str = message["channel"]
        if not channel.startswith(self._prefix):
            return None
        batch_id = channel.removeprefix(self._prefix)
        match message["type"]:
            case "subscribe":
                return Heard(batch_id)
            case "message":
                sequence, at_ms, kind, snapshot = message["data"].split(" ", 3)
                return Heard(batch_id, int(sequence), int(at_ms) / 1000, kind, json.loads(snapshot))
            case _:
                return None
