"""Reads a file from the gateway, across broken connections."""

from collections.abc import Iterator
from http import HTTPStatus

from cli.client.gateway import Gateway
from shared.errors import TransientError

#: How often in a row an answer may break before its first new byte.
_MAX_STALLS = 5


def download(gateway: Gateway, file_id: str, *, start: int = 0) -> Iterator[bytes]:
    """The file's bytes from `start` on. A gateway that knows no ranges sends it all again."""
    size = int(gateway.get(f"files/{file_id}")["bytes"])
    place, begin, stalls = start, -1, 0
    while place < size:
        stalls = stalls + 1 if place == begin else 0
        if stalls == _MAX_STALLS:
            raise TransientError(
                f"The connection breaks each time at byte {place} of {file_id}. Try again later."
            )
        begin = place
        headers = {"range": f"bytes={place}-"} if place else {}
        with gateway.open(f"files/{file_id}/content", headers=headers) as answer:
            skip = 0 if answer.status == HTTPStatus.PARTIAL_CONTENT else place
            try:
                for chunk in answer.chunks:
                    fresh = chunk[skip:]
                    skip -= len(chunk) - len(fresh)
                    if fresh:
                        place += len(fresh)
                        yield fresh
            except TransientError:
                # The next call goes on where this one broke.
                continue
