"""Fails batches whose input is gone. Lane jobs find them, and have no right to end a batch."""

import structlog

from shared.errors import InvalidTransitionError, NotFoundError
from shared.ledger.commits import fail, failure_fields
from shared.lifecycle import Event
from shared.state import State
from shared.storage import Storage

log = structlog.get_logger()

_REASON = (
    "The input file was replaced or deleted while the batch ran. "
    "Upload it again and create a new batch."
)


async def fail_lost_inputs(state: State, storage: Storage, lane: str) -> None:
    """Fail the lane's batches that have lost their input."""
    fields = failure_fields("input_changed", _REASON, param="input_file_id")
    for batch_id in await state.lanes.lost_inputs(lane):
        try:
            await fail(state, storage, batch_id, Event.INPUT_LOST, fields)
        except InvalidTransitionError as late:
            log.warning("batch.fail_late", batch_id=batch_id, status=late.status)
        except NotFoundError:
            log.warning("batch.fail_unknown", batch_id=batch_id)
        await state.lanes.forget_lost_input(lane, batch_id)
