"""The limits of a tenant that a new batch counts against, by the bus as by HTTP."""

from dataclasses import dataclass

from shared.catalog import Catalog
from shared.limits import queue_text, rate_text
from shared.messages import Reason
from shared.state import Rate, Standing, State

_HOUR = 3600
_MICROSECONDS = 1_000_000


@dataclass(frozen=True)
class NewBatchQuota:
    """How many batches an hour, and how much in all running ones."""

    catalog: Catalog
    batches_per_hour: int
    requests: int
    tokens: int

    async def exceeded(
        self, state: State, tenant: str, batch_id: str, endpoint: str
    ) -> Reason | None:
        """Count the new batch, unless it is known; or why there may be no further one now."""
        tokens = self.catalog.token_quotas(endpoint, default=self.tokens)
        rate = Rate("batches", self.batches_per_hour, _HOUR)
        outcome = await state.limits.reserve(
            tenant, batch_id, rate=rate, requests=self.requests, tokens=tokens
        )
        match outcome:
            case "requests":
                text = queue_text("requests", tenant=tenant, model=None, limit=self.requests)
            case "tokens":
                model, limit = next(iter(tokens.items()))
                text = queue_text("tokens", tenant=tenant, model=model, limit=limit)
            case Standing():
                text = rate_text(
                    tenant=tenant,
                    what="batches per hour",
                    limit=self.batches_per_hour,
                    wait_seconds=outcome.wait / _MICROSECONDS,
                )
            case _:
                return None
        return Reason("quota_exceeded", text)
