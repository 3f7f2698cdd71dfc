"""Slots for work of all tenants, of which no tenant takes all."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary


class TenantSlots:
    """Up to `slots` at a time, and up to `per_tenant` of them for one tenant.

    One tenant's work may hang, because its objects do. Other tenants then still have slots.
    """

    def __init__(self, slots: int, *, per_tenant: int) -> None:
        self._slots = asyncio.Semaphore(slots)
        self._per_tenant = per_tenant
        self._tenants: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def taken(self, tenant: str) -> AsyncIterator[None]:
        """Hold a slot, once the tenant may have one more and one is free."""
        of_tenant = self._tenants.setdefault(tenant, asyncio.Semaphore(self._per_tenant))
        async with of_tenant, self._slots:
            yield
