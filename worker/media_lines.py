"""Lines whose requests name media by URLs. Pure."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from shared.openai.media import Medium, wanted_media


class MediaLine(NamedTuple):
    """A line of a batch that names media that have to be fetched."""

    request: dict[str, Any]
    #: What is to be fetched, each in its place of the request.
    wanted: tuple[Medium, ...]

    @property
    def body(self) -> Mapping[str, Any]:
        body: Mapping[str, Any] = self.request["body"]
        return body


def media_line(line: bytes) -> MediaLine | None:
    """What the line names; None for one that brings all its media along, as nearly every line."""
    if b"_url" not in line and b'"source"' not in line:
        return None
    try:
        request = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError):
        # The engine says what is wrong with it.
        return None
    if not isinstance(request, dict) or not isinstance(request.get("body"), dict):
        return None
    wanted = wanted_media(request["body"])
    return MediaLine(request, wanted) if wanted else None


def written(line: MediaLine) -> bytes:
    """The line for the engine."""
    return json.dumps(line.request).encode()
