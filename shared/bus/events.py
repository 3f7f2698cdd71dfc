"""What subscribers receive: a batch's or a pipeline's state as a CloudEvent. Sends nothing.

Every event carries the whole state, so that a subscriber never has to wait for a missed one.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from cloudevents.core.v1.event import CloudEvent

from shared import ids
from shared.bus.topology import event_key
from shared.state.batch_record import to_openai
from shared.state.outbox import Entry


def to_event(
    entry: Entry, additions: Mapping[str, Mapping[str, str | int]] | None = None
) -> CloudEvent:
    """The event for an outbox entry, the same one each time it is sent.

    `additions` are more fields for the objects that `data` names, by `output` and `error`.
    """
    fields, snapshot = entry.fields, entry.snapshot()
    batch, tenant, sequence = snapshot["id"], snapshot["tenant"], int(fields["sequence"])
    at = int(fields["at_ms"]) / 1000
    attributes: dict[str, Any] = {
        "id": ids.event_id(batch, sequence),
        "source": f"/tenants/{tenant}/{'pipelines' if entry.is_of_pipeline else 'batches'}/{batch}",
        "type": fields["type"],
        "subject": batch,
        "time": datetime.fromtimestamp(at, UTC),
        "datacontenttype": "application/json",
        "sequence": f"{sequence:08d}",
    }
    if "correlation_id" in snapshot:
        attributes["correlationid"] = snapshot["correlation_id"]
    # CloudEvents' extension for distributed tracing.
    attributes |= {
        name: snapshot[name] for name in ("traceparent", "tracestate") if name in snapshot
    }
    data = json.loads(fields["pipeline"]) if entry.is_of_pipeline else _data(snapshot, at)
    if "slice" in fields:
        data["slice"] = json.loads(fields["slice"])
    for kind, more in (additions or {}).items():
        data[kind] |= more
    return CloudEvent(attributes=attributes, data=data)


def routing_key(entry: Entry) -> str:
    """`<type>.<tenant>.<batch id>`, or that of a pipeline."""
    snapshot = entry.snapshot()
    return event_key(entry.fields["type"], snapshot["tenant"], snapshot["id"])


def watched_state(
    fields: Mapping[str, str], *, sequence: int, at: float, kind: str
) -> dict[str, Any]:
    """A record or snapshot as watchers over HTTP get it: OpenAI's batch object and more.

    Leaves out where objects are stored, and a key `error`, which SDKs treat as a broken stream.
    """
    return {
        "type": kind,
        "sequence": sequence,
        **_state(fields, at),
        "paused": to_openai(fields).paused,
        "priority": int(fields.get("priority", 0)),
    }


def _data(snapshot: Mapping[str, str], at: float) -> dict[str, Any]:
    data = _state(snapshot, at)
    for kind in ("output", "error"):
        if f"{kind}_object" in snapshot:
            data[kind] = json.loads(snapshot[f"{kind}_object"])
    return data


def _state(snapshot: Mapping[str, str], at: float) -> dict[str, Any]:
    data = to_openai(snapshot).model_dump(mode="json", exclude={"errors"})
    if "first_error" in snapshot:
        data["first_error"] = snapshot["first_error"]
    counts, usage = data["request_counts"], data["usage"]
    done = counts["completed"] + counts["failed"]
    elapsed = at - int(snapshot.get("in_progress_at", at))
    if data["status"] == "in_progress" and "paused" not in data and done and elapsed > 0:
        data["tokens_per_second"] = round(usage["total_tokens"] / elapsed, 1)
        left = (counts["total"] - done) * elapsed / done
        if predicted := data.get("predicted"):
            left = max(0.0, predicted["finish_at"] - at)
        data["remaining_seconds"] = round(left)
    return data
