"""Ends what ran out: claims of the dead, completion windows, and objects that nothing refers to."""

import structlog

from shared.errors import InvalidTransitionError
from shared.lifecycle import Event
from shared.state import State
from shared.storage import Storage

log = structlog.get_logger()


class Reaper:
    """The dispatcher's periodic duties. Only the leader runs one."""

    def __init__(self, state: State, storage: Storage) -> None:
        self._state = state
        self._storage = storage

    async def release_claims(self) -> None:
        """Give back what lane jobs held that stopped renewing."""
        for lane in await self._state.lanes.names():
            if reaped := await self._state.slices.reap(lane):
                log.warning("claims.ran_out", lane=lane, slices=reaped)

    async def close_windows(self) -> None:
        """Let batches whose completion window has passed keep what they have, and end."""
        for batch_id in await self._state.batches.past_window():
            try:
                await self._state.apply(batch_id, Event.WINDOW_CLOSED, {"window_closed": 1})
            except InvalidTransitionError:
                # Still validating, or ending for another reason: it is looked at again.
                continue
            log.warning("batch.window_closed", batch_id=batch_id)

    async def sweep(self) -> None:
        """Delete objects, and everything under prefixes, that nothing refers to any more."""
        garbage = await self._state.files.garbage()
        if not garbage:
            return
        doomed = [key for key in garbage if not key.endswith("/")]
        for prefix in garbage:
            if prefix.endswith("/"):
                doomed += await self._storage.keys(prefix)
        await self._storage.remove(doomed)
        await self._state.files.swept(garbage)
