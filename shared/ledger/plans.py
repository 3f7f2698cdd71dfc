"""A batch's plan, as S3 keeps it: written before the batch starts, so that its parts have a sense.

Created once: whoever plans the batch again, after a crash or without Redis, goes on with this one.
"""

from collections.abc import Mapping

import msgspec

from shared.slices import Slice
from shared.state import Pin
from shared.storage import Storage


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """How a batch is cut, and what its start writes into the record."""

    fields: Mapping[str, str | int]
    slices: list[Slice]
    #: Of the event of its start; `at_ms` in Unix milliseconds.
    sequence: int
    at_ms: int

    @property
    def pin(self) -> Pin:
        return Pin(self.sequence, self.at_ms)


def plan_key(batch_id: str) -> str:
    """Where a batch's plan lies."""
    return f"batches/{batch_id}/plan.json"


async def read_plan(storage: Storage, batch_id: str) -> Plan:
    """The batch's plan. Raises NotFoundError."""
    return msgspec.json.decode(await storage.get(plan_key(batch_id)), type=Plan)


async def create_plan(storage: Storage, batch_id: str, plan: Plan) -> Plan:
    """Create the plan object. Returns the plan, or the one that was first."""
    if await storage.create(plan_key(batch_id), msgspec.json.encode(plan)):
        return plan
    return await read_plan(storage, batch_id)


async def replace_plan_pin(storage: Storage, batch_id: str, plan: Plan, pin: Pin) -> Plan:
    """Write the plan anew with another number and time for its event."""
    changed = msgspec.structs.replace(plan, **pin._asdict())
    await storage.put(plan_key(batch_id), msgspec.json.encode(changed))
    return changed
