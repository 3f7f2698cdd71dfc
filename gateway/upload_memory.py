"""Limits the memory that all running uploads take together."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import Request

from shared.errors import LimitError
from shared.storage import UPLOAD_BYTES

_WAIT_SECONDS = 5.0


class UploadMemory:
    """The memory of this process that uploads may take. A slow upload keeps its share.

    A tenant has no more than it leaves free: one alone has half, and the next one always finds
    room.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._taken_bytes: Counter[str] = Counter()

    @contextmanager
    def taken(self, request: Request, tenant: str) -> Iterator[None]:
        """Memory for the call's body while the context is open.

        Raises LimitError if there is not enough. An upload that is alone always gets it.
        """
        # A body that does not declare its length may be large.
        length = request.headers.get("content-length")
        wanted = UPLOAD_BYTES if length is None else min(int(length), UPLOAD_BYTES)
        free = self._max_bytes - self._taken_bytes.total()
        if self._taken_bytes and self._taken_bytes[tenant] + wanted > free:
            raise LimitError(
                "The server has no memory for another upload right now. Please try again in "
                f"{_WAIT_SECONDS:.0f} seconds.",
                kind="requests",
                code="rate_limit_exceeded",
                wait_seconds=_WAIT_SECONDS,
            )
        self._taken_bytes[tenant] += wanted
        try:
            yield
        finally:
            self._taken_bytes[tenant] -= wanted
            # Zeros too.
            self._taken_bytes = +self._taken_bytes
