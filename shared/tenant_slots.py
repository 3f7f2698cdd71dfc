"""Slots for work of all tenants, of which no tenants take all."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager


def may_take(tenant: str, held: Mapping[str, int], slots: int) -> bool:
    """Whether the tenant may have one more of the slots, of which tenants hold these.

    It has no more than it leaves free: one alone has half of them, the next one half of the rest,
    and so on. The next tenant finds a slot, however long the others keep theirs.
    """
    return held.get(tenant, 0) < slots - sum(held.values())


class TenantSlots:
    """Up to `slots` at a time, and for each tenant as many as `may_take` allows.

    Work may hang, because its tenant's objects do. Other tenants then still have slots. A slot that
    becomes free goes to the waiting tenant with the fewest.
    """

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._held: Counter[str] = Counter()
        #: By tenant, in the order in which they came. No tenant has an empty line.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def taken(self, tenant: str) -> AsyncIterator[None]:
        """Hold a slot, once the tenant may have one more."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        self._grant()
        try:
            await turn
            yield
        finally:
            if turn.done() and not turn.cancelled():
                self._held[tenant] -= 1
                # Zeros too.
                self._held = +self._held
            else:
                self._leave(tenant, turn)
            self._grant()

    def _grant(self) -> None:
        while (tenant := self._next()) is not None:
            turn = self._waiting[tenant][0]
            self._leave(tenant, turn)
            # Whoever was cancelled takes none.
            if not turn.cancelled():
                turn.set_result(None)
                self._held[tenant] += 1

    def _next(self) -> str | None:
        """The waiting tenant that gets the next slot; None if none of them may have one."""
        able = (one for one in self._waiting if may_take(one, self._held, self._slots))
        return min(able, key=self._held.__getitem__, default=None)

    def _leave(self, tenant: str, turn: asyncio.Future[None]) -> None:
        if turn in (line := self._waiting.get(tenant, deque())):
            line.remove(turn)
        if not line:
            self._waiting.pop(tenant, None)
