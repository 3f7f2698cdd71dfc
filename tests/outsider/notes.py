"""What an outsider has asked for, and all that it was given. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Seen:
    """One batch, from the request for it to its end."""

    key: str
    #: Custom id and body of each of its requests, in order.
    rows: list[tuple[str, Mapping[str, Any]]]
    #: `http` or `bus`.
    door: str
    #: The answer to a request for its cancellation, if there was one.
    cancel_status: int | None = None
    #: Every id that creating it was answered with, however often it was asked for.
    ids: set[str] = field(default_factory=set)
    #: As they were seen, one after the other.
    statuses: list[str] = field(default_factory=list)
    #: The batch as HTTP shows it after its end.
    end: dict[str, Any] | None = None
    #: The result files' contents, and their own objects.
    files: dict[str, bytes] = field(default_factory=dict)
    file_objects: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: The answer to a stranger who asks for it with a key of its own.
    strangers_status: int | None = None


@dataclass
class Notes:
    """One outsider's notes."""

    batches: list[Seen] = field(default_factory=list)
    #: Events, as they came over the bus.
    events: list[dict[str, Any]] = field(default_factory=list)
    #: The ids of all batches that the listing has at the end.
    listed: list[str] = field(default_factory=list)
    #: Answers that the documents know nothing of.
    surprises: list[str] = field(default_factory=list)
