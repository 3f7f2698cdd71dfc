"""A subscriber that follows docs/bus-events.md, and does nothing else."""

import json
from collections import defaultdict
from typing import Any

from aio_pika.abc import AbstractIncomingMessage

from shared.lifecycle import FINAL


class Subscriber:
    """What it knows of each batch, by the event's source."""

    def __init__(self) -> None:
        self.states: dict[str, dict[str, Any]] = {}
        #: The types that were applied, in order.
        self.applied: defaultdict[str, list[str]] = defaultdict(list)
        #: Every event that came, once each, in the order in which they first came.
        self.bodies: dict[tuple[str, str], bytes] = {}
        self.repeats = 0
        self._newest: dict[str, str] = {}
        self._ended: set[str] = set()

    def take(self, message: AbstractIncomingMessage) -> None:
        event = json.loads(message.body)
        source, sequence = event["source"], event["sequence"]
        key = source, event["id"]
        if key in self.bodies:
            self.repeats += 1
            assert self.bodies[key] == message.body, "a repeat has other bytes"
        self.bodies.setdefault(key, message.body)
        if sequence <= self._newest.get(source, "") or source in self._ended:
            return
        self._newest[source] = sequence
        self.states[source] = event["data"]
        self.applied[source].append(event["type"])
        if event["data"]["status"] in FINAL:
            self._ended.add(source)

    def sequences(self, source: str) -> list[str]:
        """In the order in which they came first."""
        return [
            json.loads(body)["sequence"] for key, body in self.bodies.items() if key[0] == source
        ]
