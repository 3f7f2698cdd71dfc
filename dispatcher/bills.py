"""Writes the bill of each month that has ended, once; what is written stays."""

import time

import structlog

from shared.catalog import Catalog
from shared.costs.bill import Format, bill_key, make_bill
from shared.costs.focus import Month
from shared.state import State
from shared.storage import Storage

log = structlog.get_logger()

#: How far back bills are made up for, should no dispatcher have run at a month's end.
_MONTHS = 12
#: A batch's end counts on the day that its event names, which may come a little later.
_SETTLED_SECONDS = 3600.0


class Bills:
    """Safe to repeat, and for two dispatchers at once."""

    def __init__(self, state: State, storage: Storage, catalog: Catalog, form: Format) -> None:
        self._state = state
        self._storage = storage
        self._catalog = catalog
        self._form = form

    async def write(self, *, now: float | None = None) -> None:
        """Write the bills that are missing. Raises TransientError."""
        # A month without its numbers must not become an empty bill.
        await self._state.restore.raise_if_under_way()
        month = Month.of((time.time() if now is None else now) - _SETTLED_SECONDS)
        kept = set(await self._storage.keys("bills/"))
        for _ in range(_MONTHS):
            month = month.before
            key = bill_key(month, self._form)
            if key in kept:
                continue
            bill = await make_bill(
                self._state, self._catalog, month, self._form, account=self._storage.bucket
            )
            # Nor if a rebuild has begun since, while this waited for Redis.
            await self._state.restore.raise_if_under_way()
            if bill is None:
                continue
            if await self._storage.create(key, bill):
                log.info("bill.written", month=str(month), key=key, bytes=len(bill))
