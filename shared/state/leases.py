"""Named leases: one holder at a time. Each new holder gets a higher fencing number."""

from shared.state.scripts import Scripts


class Lease:
    """A right that expires unless it is renewed."""

    def __init__(self, scripts: Scripts, name: str, holder: str, *, seconds: float) -> None:
        self._scripts = scripts
        self._name = name
        self._holder = holder
        self.seconds = seconds

    async def hold(self) -> int:
        """Take or renew the lease. Returns the fencing number, or 0 if another process holds it."""
        number: int = await self._scripts.run(
            "lease", self._name, self._holder, int(self.seconds * 1000)
        )
        return number

    async def release(self) -> None:
        """End the lease now, so that the next holder need not wait."""
        await self._scripts.run("lease", self._name, self._holder, 0)
