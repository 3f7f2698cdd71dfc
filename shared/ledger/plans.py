"""A batch's plan in S3. It is written before the batch starts, because parts refer to it.

It is created once. A planner that starts over, after a crash or without Redis, uses the same plan.
"""

from collections.abc import Mapping

import msgspec
import structlog

from shared.errors import BrokenObjectError
from shared.ledger.quarantine import set_aside
from shared.ledger.records import encoded, read_record
from shared.slices import Slice
from shared.state import Pin
from shared.storage import Storage

log = structlog.get_logger()


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How a batch is cut, and the fields that its start writes into the record."""

    fields: Mapping[str, str | int]
    slices: list[Slice]
    #: Number and time (Unix milliseconds) of the event of its start.
    sequence: int
    at_ms: int

    @property
    def pin(self) -> Pin:
        return Pin(self.sequence, self.at_ms)


def plan_key(batch_id: str) -> str:
    """The S3 key of a batch's plan."""
    return f"batches/{batch_id}/plan.json"


async def read_plan(storage: Storage, batch_id: str) -> Plan:
    """The batch's plan. Raises NotFoundError and BrokenObjectError."""
    return await read_record(storage, plan_key(batch_id), Plan)


async def create_plan(storage: Storage, batch_id: str, plan: Plan) -> Plan:
    """Create the plan. Returns it, or the existing one if there is one already.

    A damaged one is set aside, and so are the parts that were made by it.
    """
    while not await storage.create(plan_key(batch_id), encoded(plan)):
        try:
            return await read_plan(storage, batch_id)
        except BrokenObjectError as error:
            log.error("plan.broken", batch_id=batch_id, reason=error.reason)  # noqa: TRY400  # the reason says it all
            await set_plan_aside(storage, batch_id)
    return plan


async def set_plan_aside(storage: Storage, batch_id: str) -> None:
    """Set the plan aside with all parts of the batch: another plan may cut its rows elsewhere."""
    # The plan last: while it is there, whoever comes next begins here again.
    for key in await storage.keys(f"batches/{batch_id}/parts/"):
        await set_aside(storage, key)
    await set_aside(storage, plan_key(batch_id))


async def replace_plan_pin(storage: Storage, batch_id: str, plan: Plan, pin: Pin) -> Plan:
    """Rewrite the plan with another number and time for its event."""
    changed = msgspec.structs.replace(plan, **pin._asdict())
    await storage.put(plan_key(batch_id), encoded(changed))
    return changed
