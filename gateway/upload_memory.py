"""How much memory all uploads under way take together; who finds no room is to come again."""

from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import Request

from shared.errors import LimitError
from shared.storage import UPLOAD_BYTES

_WAIT_SECONDS = 5.0


class UploadMemory:
    """Memory of this process. A slow upload keeps its share for as long as it takes."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._taken_bytes = 0

    @contextmanager
    def taken(self, request: Request) -> Iterator[None]:
        """Room for the call's body while the context is open. Raises LimitError if there is none.

        One alone always finds room.
        """
        # What does not say how large it is may be large.
        told = request.headers.get("content-length")
        wanted = UPLOAD_BYTES if told is None else min(int(told), UPLOAD_BYTES)
        if self._taken_bytes and self._taken_bytes + wanted > self._most_bytes:
            raise LimitError(
                "The server takes as many uploads at once as it has memory for. Please try again "
                f"in {_WAIT_SECONDS:.0f} seconds.",
                kind="requests",
                code="rate_limit_exceeded",
                wait_seconds=_WAIT_SECONDS,
            )
        self._taken_bytes += wanted
        try:
            yield
        finally:
            self._taken_bytes -= wanted
