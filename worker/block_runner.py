"""Runs blocks of slices from S3 to their commits. Imports no Ray: waves without it use it too."""

import asyncio
from collections.abc import Sequence

from shared.slices import Claim
from shared.state import State
from shared.storage import Storage
from worker.slice_io import SliceInput, begin, fetch, settle
from worker.slice_runner import SliceRunner

#: Blocks that are read or committed meanwhile, so that the engine waits for neither.
BLOCKS_ON_THEIR_WAY = 2


class BlockRunner:
    """Takes several blocks at a time, of which `turns` are in the engine."""

    def __init__(
        self,
        state: State,
        storage: Storage,
        runner: SliceRunner,
        *,
        turns: int,
        slice_events: bool = False,
    ) -> None:
        self._state = state
        self._storage = storage
        self._runner = runner
        self._places = asyncio.Semaphore(turns + BLOCKS_ON_THEIR_WAY)
        self._turns = asyncio.Semaphore(turns)
        self._slice_events = slice_events

    async def run(self, claims: Sequence[Claim]) -> None:
        """Run these slices and settle each, except those that have been taken back.

        Raises an ExceptionGroup of TransientErrors while S3 or Redis is away.
        """
        async with self._places, asyncio.TaskGroup() as settling:
            given = await asyncio.gather(*(fetch(self._storage, claim) for claim in claims))
            # A block that waits for its turn has not begun, so its slices can be taken back.
            async with self._turns:
                may_run = await begin(self._state, claims)
                await asyncio.gather(
                    *(
                        self._run(claim, one, settling)
                        for claim, one, may in zip(claims, given, may_run, strict=True)
                        if may
                    )
                )

    async def _run(self, claim: Claim, given: SliceInput, settling: asyncio.TaskGroup) -> None:
        result = await self._runner.run(claim, given)
        # Whoever stops the batch waits for this slice, and not for the others of its block; and
        # the next block does not wait for S3.
        settling.create_task(
            settle(self._state, self._storage, claim, result, slice_events=self._slice_events)
        )
