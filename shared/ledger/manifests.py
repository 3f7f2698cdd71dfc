"""What a batch is before anything happens to it, as S3 keeps it: created once and for ever."""

from typing import Literal

import msgspec


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """All that a batch is before anything happens to it. Times are Unix seconds."""

    id: str
    tenant: str
    message_id: str
    #: Of what the client asked for; another one under the same message id is a conflict.
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
    #: W3C's, of the message that asked for the batch.
    traceparent: str = ""
    tracestate: str = ""
    #: Further pins of the input besides its ETag.
    version_id: str = ""
    sha256: str = ""
    output_seconds: int = 0
    #: Whether the input is an object that has no file record yet.
    is_foreign: bool = False
    #: How long that file record lasts; 0 for ever.
    file_seconds: int = 0
    #: Whether small results are to travel in the last event.
    deliver_results: bool = False
    paused: bool = False
    #: Whether a client has changed it since its creation.
    is_changed: bool = False
    #: Where the input begins in its object. In a pack the ETag is left out: it is the pack's own.
    start: int = 0
    #: With how many each of its rows begins, as if so many engines had died with it.
    strikes: int = 0


def batch_folder(batch_id: str) -> str:
    """The prefix of all that is written about a batch, but for its line in a pack."""
    return f"batches/{batch_id}/"


def manifest_key(batch_id: str) -> str:
    """Where a batch's manifest lies."""
    return f"{batch_folder(batch_id)}manifest.json"
