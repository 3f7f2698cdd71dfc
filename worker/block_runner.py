"""Runs blocks of slices from S3 to their commits. Imports no Ray: waves without it use it too."""

import asyncio
from collections.abc import Sequence

from shared.slices import Claim
from shared.state import State
from shared.storage import Storage
from worker.slice_io import SliceInput, begin, fetch, settle
from worker.slice_runner import SliceRunner


class BlockRunner:
    """Takes several blocks at a time. The engine has all of their rows that its runner lets in."""

    def __init__(
        self,
        state: State,
        storage: Storage,
        runner: SliceRunner,
        *,
        blocks_at_once: int,
        slice_events: bool = False,
    ) -> None:
        """Of `blocks_at_once` blocks, one may wait for room in the engine; others are in it."""
        self._state = state
        self._storage = storage
        self._runner = runner
        self._places = asyncio.Semaphore(blocks_at_once)
        self._turn = asyncio.Lock()
        self._slice_events = slice_events

    async def run(self, claims: Sequence[Claim]) -> None:
        """Run these slices and settle each, except those that have been taken back.

        Raises an ExceptionGroup of TransientErrors while S3 or Redis is away.
        """
        async with self._places, asyncio.TaskGroup() as running:
            given = await asyncio.gather(*(fetch(self._storage, claim) for claim in claims))
            # A block that waits for its turn has not begun, so its slices can be taken back.
            async with self._turn:
                may_run = await begin(self._state, claims)
                inside: list[asyncio.Event] = []
                for claim, one, may in zip(claims, given, may_run, strict=True):
                    if may:
                        inside.append(asyncio.Event())
                        running.create_task(self._run(claim, one, inside[-1], running))
                # The next block begins when nothing of this one waits any more, and not when the
                # last of its rows has its result: the seats of the others would be empty.
                await asyncio.gather(*(entered.wait() for entered in inside))

    async def _run(
        self, claim: Claim, given: SliceInput, entered: asyncio.Event, running: asyncio.TaskGroup
    ) -> None:
        result = await self._runner.run(claim, given, entered=entered)
        # Whoever stops the batch waits for this slice, and not for the others of its block; and
        # the next block does not wait for S3.
        running.create_task(
            settle(self._state, self._storage, claim, result, slice_events=self._slice_events)
        )
