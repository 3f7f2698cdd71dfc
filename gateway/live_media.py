"""Media that live calls name by URLs: the gateway fetches them, and the engine gets data.

As lane jobs do for rows, with the same rules and guards: an engine downloads nothing and holds no
login of S3.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from weakref import WeakValueDictionary

from gateway.live_request import LiveRequest
from gateway.memory import Memory
from shared.errors import InvalidInputError
from shared.media_fetcher import MEDIA_AT_ONCE, MediaFetcher, MediaRefusedError
from shared.outbound import Guard
from shared.storage import Storage


class LiveMedia:
    """Belongs to one event loop."""

    def __init__(
        self, storage: Storage, guard: Guard, *, timeout_seconds: float, max_bytes: int
    ) -> None:
        """`max_bytes` is the memory for the files of all calls that run."""
        self._fetcher = MediaFetcher(lambda: storage, guard, timeout_seconds=timeout_seconds)
        self._memory = Memory(max_bytes, "the media of another live call")
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def brought(
        self, tenant: str, asked: LiveRequest, body: Mapping[str, Any]
    ) -> AsyncIterator[bytes | None]:
        """The call's body with its media in it; None if it names none.

        The memory is taken for as long as the context is open. Raises InvalidInputError,
        LimitError, and TransientError while S3 is away.
        """
        if not asked.wanted:
            yield None
            return
        async with AsyncExitStack() as stack:
            # What is fetched may have any size up to the limit, so few calls fetch at once.
            async with self._turns.setdefault(tenant, asyncio.Semaphore(MEDIA_AT_ONCE)):
                limits = asked.model.rules.media.limits
                taken = stack.enter_context(self._memory.taken(tenant, limits.bytes))
                try:
                    taken.keep(await self._fetcher.fill(tenant, asked.wanted, limits))
                except MediaRefusedError as error:
                    text = f"Invalid '{error.place}': {error}."
                    raise InvalidInputError(
                        text, param=error.place, code="invalid_value"
                    ) from error
            yield json.dumps(body).encode()
