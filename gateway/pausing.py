"""How much of a batch that was just paused will still run."""

import asyncio
import time

from shared.state import BatchRecord, State

#: Lane jobs answer within milliseconds. Without an answer, all rows of a slice count.
_PATIENCE_SECONDS = 1.0
_LOOK_SECONDS = 0.02


async def rows_in_engine(
    state: State, batch: BatchRecord, *, patience_seconds: float = _PATIENCE_SECONDS
) -> int:
    """Take back what has not begun, and ask the lane jobs how many rows are in the engine.

    For a lane job that does not answer, the number is as large as it can be.
    """
    await state.claims.take_back(batch.id, unbegun_only=True)
    deadline = time.monotonic() + patience_seconds
    ending = await state.claims.ending(batch.id)
    while ending.untold and time.monotonic() < deadline:
        await asyncio.sleep(_LOOK_SECONDS)
        ending = await state.claims.ending(batch.id)
    untold = state.slices.some(batch.id, batch.fields.get("plan", ""), ending.untold)
    return ending.rows + sum([planned.slice.rows async for planned in untold])
