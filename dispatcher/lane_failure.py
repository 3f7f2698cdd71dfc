"""Fails the batches of a lane whose engine cannot run them, so that it does not retry forever."""

import asyncio
from collections.abc import Mapping

import structlog

from shared.errors import InvalidTransitionError
from shared.ledger.commits import fail, failure_fields, save_lane_failure
from shared.lifecycle import Event
from shared.state import State
from shared.storage import Storage

log = structlog.get_logger()

#: Batches at a time: each costs a call to S3.
_AT_ONCE = 12


async def fail_lane(state: State, storage: Storage, lane: str, reason: str) -> None:
    """Fail the lane's batches with the engine's reason. Batches with other lanes go on there."""
    fields = failure_fields("engine_failed", reason, param="model")
    while batches := await state.lanes.active(lane):
        for first in range(0, len(batches), _AT_ONCE):
            some = batches[first : first + _AT_ONCE]
            await asyncio.gather(
                *(_fail_batch(state, storage, lane, one, reason, fields) for one in some)
            )
    await state.lanes.clear_failure(lane)
    log.error("lane.failed", lane=lane, reason=reason)


async def _fail_batch(
    state: State,
    storage: Storage,
    lane: str,
    batch_id: str,
    reason: str,
    fields: Mapping[str, str | int],
) -> None:
    try:
        if (await state.batches.get(batch_id)).lanes == [lane]:
            await fail(state, storage, batch_id, Event.LANE_FAILED, fields)
        else:
            await save_lane_failure(storage, batch_id, lane, reason)
            await state.fail_lane(lane, batch_id, reason, fields)
    except InvalidTransitionError as error:
        log.warning("lane.fail_late", batch_id=batch_id, status=error.status)
