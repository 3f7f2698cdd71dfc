"""A batch's plan in S3. It is written before the batch starts, because parts refer to it.

It is created once. A planner that starts over, after a crash or without Redis, uses the same plan.
"""

from collections.abc import Mapping

import msgspec

from shared.slices import Slice
from shared.state import Pin
from shared.storage import Storage


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
    """The batch's plan. Raises NotFoundError."""
    return msgspec.json.decode(await storage.get(plan_key(batch_id)), type=Plan)


async def create_plan(storage: Storage, batch_id: str, plan: Plan) -> Plan:
    """Create the plan. Returns it, or the existing one if there is one already."""
    if await storage.create(plan_key(batch_id), msgspec.json.encode(plan)):
        return plan
    return await read_plan(storage, batch_id)


async def replace_plan_pin(storage: Storage, batch_id: str, plan: Plan, pin: Pin) -> Plan:
    """Rewrite the plan with another number and time for its event."""
    changed = msgspec.structs.replace(plan, **pin._asdict())
    await storage.put(plan_key(batch_id), msgspec.json.encode(changed))
    return changed
