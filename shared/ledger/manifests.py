"""Manifests: what a client asked for. Created once in S3 and kept for ever."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from shared import ids

#: The metadata key under which a batch that runs requests again names their first batch.
RETRY_OF = "retry_of"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """A batch as it was submitted. Times are Unix seconds."""

    id: str
    tenant: str
    message_id: str
    #: A digest of the client's request. Another one under the same message id is a conflict.
    fingerprint: str
    door: Literal["http", "bus"]
    endpoint: str
    input_file_id: str
    bucket: str
    key: str
    etag: str
    size: int
    completion_window: str
    created_at: int
    expires_at: int
    priority: int = 5
    metadata: str = ""
    correlation_id: str = ""
    reply_to: str = ""
    #: The W3C trace context of the call or message that asked for the batch.
    traceparent: str = ""
    tracestate: str = ""
    #: Together with the ETag, these pin the input.
    version_id: str = ""
    sha256: str = ""
    output_seconds: int = 0
    #: Whether the input is an object that has no file record yet.
    is_foreign: bool = False
    #: How long that file record is kept; 0 for ever.
    file_seconds: int = 0
    #: Whether the last event contains small results.
    deliver_results: bool = False
    paused: bool = False
    #: Whether a client has changed the batch since its creation.
    is_changed: bool = False
    #: Where the input starts in its object. In a pack, `etag` is empty and the pack's own applies.
    start: int = 0
    #: How many strikes each row starts with, as if that many engines had died with it.
    strikes: int = 0
    #: The key of the dataset that the input is rendered from; until then it stands for the input.
    dataset: str = ""
    #: The table that is made of the results, as JSON.
    output: str = ""
    #: Which answers are asked for again, as `shared.table.asking` writes it; empty for none.
    asking: str = ""
    #: The model of an open batch, whose rows come in additions; empty for any other.
    open_model: str = ""
    #: The pipeline that the batch is a stage of; it alone adds rows.
    pipeline: str = ""
    #: How long its answers may be given to later batches of the tenant; 0 without a cache.
    cache_seconds: int = 0
    #: The key of the pack that it shares with others; empty for one that has an object of its own,
    #: or lies behind the batch's input.
    pack: str = ""


def to_manifest(record: Mapping[str, str]) -> Manifest:
    """The manifest of a batch as its record in Redis has it, with what was changed since."""
    fields: dict[str, object] = {**record, "paused": "paused" in record}
    fields["deliver_results"] = "deliver_results" in record
    fields["is_foreign"] = record["input_file_id"] == ids.input_file_id(record["id"])
    fields["is_changed"] = True
    return msgspec.convert(fields, Manifest, strict=False)


def batch_folder(batch_id: str) -> str:
    """The prefix of everything written about a batch, except its line in a pack."""
    return f"batches/{batch_id}/"


def manifest_key(batch_id: str) -> str:
    """The S3 key of a batch's manifest."""
    return f"{batch_folder(batch_id)}manifest.json"
