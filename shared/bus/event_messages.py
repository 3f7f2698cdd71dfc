"""Events as messages: the same bytes each time that an event is sent, live or in a replay.

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
#: Seconds to read the result files of one event, while other batches' events wait.
_PATIENCE_SECONDS = 5.0
#: Stands for all tenants in the setting of those with events in binary mode.
EVERY_TENANT = "*"


class EventMessage(NamedTuple):
    """A message, ready to be published."""

    routing_key: str
    body: bytes
    properties: dict[str, str | datetime]
    headers: dict[str, str]


@dataclass(frozen=True)
class EventMessages:
    """Makes the messages of events, as a deployment configures them."""

    #: Where result files are read.
    storage: Storage | None = None
    #: Signs URLs of result files for S3 as subscribers reach it; None for no URLs.
    signer: Storage | None = None
    #: How long such a URL lasts after its event's time.
    url_seconds: int = 0
    #: Tenants whose events are in binary mode.
    binary_tenants: AbstractSet[str] = frozenset()
    #: An event carries a batch's result files if both together have at most this many bytes.
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
            # The same as the SDK's own format, in a fraction of the time.
            body = msgspec.json.encode({**event.get_attributes(), "data": event.get_data()})
        return EventMessage(routing_key(entry), body, properties, headers)

    async def _additions(
        self, entry: Entry, snapshot: Mapping[str, str]
    ) -> dict[str, dict[str, str | int]]:
        """Further fields for each result file."""
        if snapshot["status"] not in FINAL:
            return {}
        objects = {
            kind: json.loads(snapshot[f"{kind}_object"])
            for kind in ("output", "error")
            if f"{kind}_object" in snapshot
        }
        additions: dict[str, dict[str, str | int]] = {kind: {} for kind in objects}
        if self.signer is not None:
            # Valid from the event's own time on, so that signing again gives the same URL.
            at = int(entry.fields["at_ms"]) // 1000
            for kind, file in objects.items():
                url = self.signer.signed_url(file["key"], at=at, seconds=self.url_seconds)
                additions[kind] |= {"url": url, "url_expires_at": at + self.url_seconds}
        is_small = sum(file["size"] for file in objects.values()) <= self.content_bytes
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
                    kind: (await self.storage.get(file["key"], etag=file["etag"])).decode()
                    for kind, file in objects.items()
                }
        except TimeoutError as error:
            raise TransientError("S3 takes too long to give a result file.") from error
        except (NotFoundError, UnicodeDecodeError):
            # It has been deleted, or JSON cannot carry it.
            return {}


def _headers(event: CloudEvent) -> dict[str, str]:
    """The attributes, for header bindings and for events in binary mode."""
    return {
        f"cloudEvents_{name}": (
            value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else str(value)
        )
        for name, value in event.get_attributes().items()
    }
