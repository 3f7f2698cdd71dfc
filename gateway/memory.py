"""Limits the memory that all running calls of one kind take together."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from fastapi import Request

from shared.errors import LimitError
from shared.storage import UPLOAD_BYTES

_WAIT_SECONDS = 5.0


class Memory:
    """The memory of this process that such calls may take. A slow call keeps its share.

    A tenant has no more than it leaves free: one alone has half, and the next one always finds
    room.
    """

    def __init__(self, max_bytes: int, purpose: str) -> None:
        """`purpose` is what a refusal says that there is no memory for."""
        self._max_bytes = max_bytes
        self._purpose = purpose
        self._taken_bytes: Counter[str] = Counter()

    @contextmanager
    def taken(self, tenant: str, wanted: int) -> Iterator["Taken"]:
        """So many bytes while the context is open, but for those that are given back earlier.

        Raises LimitError if there are not enough. A call that is alone always gets them.
        """
        free = self._max_bytes - self._taken_bytes.total()
        if self._taken_bytes and self._taken_bytes[tenant] + wanted > free:
            raise LimitError(
                f"The server has no memory for {self._purpose} right now. Please try again in "
                f"{_WAIT_SECONDS:.0f} seconds.",
                kind="requests",
                code="rate_limit_exceeded",
                wait_seconds=_WAIT_SECONDS,
            )
        self._taken_bytes[tenant] += wanted
        taken = Taken(self._taken_bytes, tenant, wanted)
        try:
            yield taken
        finally:
            taken.keep(0)
            if not self._taken_bytes[tenant]:
                del self._taken_bytes[tenant]


class Taken:
    """What one call has of the memory."""

    def __init__(self, of_all: Counter[str], tenant: str, size: int) -> None:
        self._of_all = of_all
        self._tenant = tenant
        self._bytes = size

    def keep(self, size: int) -> None:
        """Give back all but so many bytes."""
        self._of_all[self._tenant] -= self._bytes - size
        self._bytes = size


def upload_bytes(request: Request) -> int:
    """The memory that an upload takes: its size, as far as it declares one."""
    # A body that does not declare its length may be large.
    length = request.headers.get("content-length")
    return UPLOAD_BYTES if length is None else min(int(length), UPLOAD_BYTES)
