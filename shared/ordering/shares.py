"""How much of an engine each tenant has had. Pure."""

from collections.abc import Collection, Mapping


class Shares:
    """The tokens that each tenant has had, for each unit of its weight."""

    def __init__(self, used: Mapping[str, float] | None = None) -> None:
        """Start from what each tenant has had so far."""
        self._used = dict(used or {})
        #: Tokens that were charged when they were begun, and are not computed yet.
        self._begun: dict[str, float] = {}
        self._weights: dict[str, float] = {}

    def of(self, tenant: str) -> float:
        """The tenant's tokens, per unit of its weight."""
        return self._used.get(tenant, 0.0)

    def weight(self, tenant: str) -> float:
        return self._weights.get(tenant, 1.0)

    def weigh(self, tenant: str, weight: float) -> None:
        """Set the tenant's weight, which is 1 before."""
        self._weights[tenant] = weight

    def charge(self, tenant: str, tokens: float) -> None:
        """Count tokens for a tenant. Negative ones correct a prediction that was too high."""
        self._used[tenant] = self.of(tenant) + tokens / self.weight(tenant)

    def begin(self, tenant: str, tokens: float) -> None:
        """Note that so many of the tokens that were charged are computed from now on."""
        self._begun[tenant] = self._begun.get(tenant, 0.0) + tokens

    def end(self, tenant: str, tokens: float) -> None:
        """Note that the work with these tokens is done, or given up."""
        left = self._begun.pop(tenant, 0.0) - tokens
        # Sums of fractions leave a rest.
        if left > 1:
            self._begun[tenant] = left

    def join(self, tenant: str, others: Collection[str]) -> None:
        """A tenant that had no work has some again. It is owed nothing for the time without.

        This is the lift of the virtual token counter (arXiv 2401.00588, algorithm 2). Without it,
        a tenant that comes back would have the engine alone until it caught up with the others.
        What others have begun will be computed while this tenant waits, so it does not count.
        """
        if others:
            self._used[tenant] = max(self.of(tenant), min(map(self._ended, others)))

    def _ended(self, tenant: str) -> float:
        return self.of(tenant) - self._begun.get(tenant, 0.0) / self.weight(tenant)
