"""Reads server-sent events from chunks of bytes. Pure."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple


class Event(NamedTuple):
    """One event: its id, and the batch that it holds."""

    id: str
    batch: dict[str, Any]


def events(chunks: Iterable[bytes]) -> Iterator[Event | None]:
    """The events of a stream; None for each comment, which says that the stream is alive."""
    rest, last_id, data = b"", "", b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            name, _, value = line.rstrip(b"\r").partition(b":")
            value = value.removeprefix(b" ")
            if name == b"id":
                last_id = value.decode()
            elif name == b"data":
                data += value
            elif line.startswith(b":"):
                yield None
            elif not line.strip() and data:
                yield Event(last_id, json.loads(data))
                data = b""


def data_of(chunks: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """What each event of a live call's stream holds, up to its end."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            name, _, value = line.strip().partition(b":")
            if name == b"data" and value.strip() != b"[DONE]":
                yield json.loads(value)
