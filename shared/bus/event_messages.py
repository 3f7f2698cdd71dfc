"""Events as messages: the same bytes each time that an event is sent, live or asked for again.

The mapping of CloudEvents to AMQP 0-9-1 is our own; there is no official one.
"""

import asyncio
import json
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec
from cloudevents.core.v1.event import CloudEvent

from shared.bus.events import routing_key, to_event
from shared.errors import NotFoundError, TransientError
from shared.lifecycle import FINAL
from shared.state.outbox import Entry
from shared.storage import Storage

STRUCTURED = "application/cloudevents+json; charset=utf-8"
#: For the result files of one event: other batches' events wait meanwhile.
_PATIENCE_SECONDS = 5.0
#: In the setting of tenants with events in binary mode: all of them.
EVERY_TENANT = "*"


class EventMessage(NamedTuple):
    """A message, ready to be published."""

    routing_key: str
    body: bytes
    properties: dict[str, str | datetime]
    headers: dict[str, str]


@dataclass(frozen=True)
class EventMessages:
    """Makes the messages of events, as a deployment wishes them."""

    #: Where result files are read.
    storage: Storage | None = None
    #: S3 as subscribers reach it, which signs URLs of result files; None for no URLs.
    signer: Storage | None = None
    #: How long such a URL lasts after its event's time.
    url_seconds: int = 0
    #: Tenants who get their events in binary mode.
    binary_tenants: AbstractSet[str] = frozenset()
    #: The most bytes that both result files of a batch may have to travel in its event.
    content_bytes: int = 0

    async def of(self, entry: Entry) -> EventMessage:
        """The message of an outbox entry. Raises TransientError while S3 cannot be read."""
        snapshot = entry.snapshot()
        event = to_event(entry, await self._additions(entry, snapshot))
        properties: dict[str, str | datetime] = {
            "message_id": event.get_id(),
            "type": event.get_type(),
            "correlation_id": snapshot.get("correlation_id", snapshot["id"]),
            "timestamp": event.get_time() or datetime.now(UTC),
        }
        headers = _headers(event)
        if self.binary_tenants & {snapshot["tenant"], EVERY_TENANT}:
            properties["content_type"] = headers.pop("cloudEvents_datacontenttype")
            body = msgspec.json.encode(event.get_data())
        else:
            properties["content_type"] = STRUCTURED
            # As the SDK's own format writes it, in a fraction of the time.
            body = msgspec.json.encode({**event.get_attributes(), "data": event.get_data()})
        return EventMessage(routing_key(entry), body, properties, headers)

    async def _additions(
        self, entry: Entry, snapshot: Mapping[str, str]
    ) -> dict[str, dict[str, str | int]]:
        """More of each result file than where it lies."""
        if snapshot["status"] not in FINAL:
            return {}
        objects = {
            kind: json.loads(snapshot[f"{kind}_object"])
            for kind in ("output", "error")
            if f"{kind}_object" in snapshot
        }
        additions: dict[str, dict[str, str | int]] = {kind: {} for kind in objects}
        if self.signer is not None:
            # From the event's own time on: signed again, it is the same URL.
            at = int(entry.fields["at_ms"]) // 1000
            for kind, told in objects.items():
                url = self.signer.signed_url(told["key"], at=at, seconds=self.url_seconds)
                additions[kind] |= {"url": url, "url_expires_at": at + self.url_seconds}
        is_small = sum(told["size"] for told in objects.values()) <= self.content_bytes
        if "deliver_results" in snapshot and is_small:
            for kind, text in (await self._contents(objects)).items():
                additions[kind]["content"] = text
        return additions

    async def _contents(self, objects: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
        if self.storage is None:
            return {}
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                return {
                    kind: (await self.storage.get(told["key"], etag=told["etag"])).decode()
                    for kind, told in objects.items()
                }
        except TimeoutError as error:
            raise TransientError("S3 takes too long to give a result file.") from error
        except (NotFoundError, UnicodeDecodeError):
            # Deleted by now, or nothing that JSON could carry.
            return {}


def _headers(event: CloudEvent) -> dict[str, str]:
    """The attributes, so that bindings can match them and binary events have them at all."""
    return {
        f"cloudEvents_{name}": (
            value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else str(value)
        )
        for name, value in event.get_attributes().items()
    }
