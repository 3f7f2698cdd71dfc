"""Decides whether a tenant may create another batch, and words the refusal."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from shared.catalog import Catalog
from shared.openai.limits import RATE_NAMES, queue_text, rate_text
from shared.settings import SharedSettings
from shared.state import KnownBatch, NewBatchParams, QuotaKind, Rate, RateStatus, State

_HOUR = 3600


class FullQueue(NamedTuple):
    """A quota that the tenant's running batches have used up. `model` is None for requests."""

    queue: QuotaKind
    model: str | None
    limit: int


@dataclass(frozen=True)
class NewBatchQuota:
    """How many batches a tenant may create per hour, and how much its running ones may hold."""

    catalog: Catalog
    batches_per_hour: int
    requests: int
    tokens: int
    mixed_batches: bool = False

    @classmethod
    def of(cls, settings: SharedSettings, catalog: Catalog) -> Self:
        return cls(
            catalog,
            settings.batches_per_hour,
            settings.max_enqueued_requests,
            settings.max_enqueued_tokens,
            mixed_batches=settings.mixed_batches,
        )

    @property
    def rate(self) -> Rate:
        return Rate("batches", self.batches_per_hour, _HOUR)

    async def reserve(
        self, state: State, tenant: str, batch_id: str, endpoint: str
    ) -> KnownBatch | FullQueue | RateStatus | None:
        """Count the new batch unless it exists. Returns None if it may be created."""
        params = self._params(tenant, batch_id, endpoint)
        return self._outcome(params, await state.limits.reserve(params))

    async def reserve_all(
        self, state: State, batches: Sequence[tuple[str, str, str]]
    ) -> list[KnownBatch | FullQueue | RateStatus | None]:
        """`reserve` for each tenant, batch id and endpoint, in one round trip."""
        params = [self._params(*batch) for batch in batches]
        outcomes = await state.limits.reserve_all(params)
        return [self._outcome(*pair) for pair in zip(params, outcomes, strict=True)]

    def _params(self, tenant: str, batch_id: str, endpoint: str) -> NewBatchParams:
        tokens = self.catalog.token_quotas(
            None if self.mixed_batches else endpoint, default=self.tokens
        )
        return NewBatchParams(tenant, batch_id, self.rate, self.requests, tokens)

    def _outcome(
        self, params: NewBatchParams, outcome: KnownBatch | QuotaKind | RateStatus | None
    ) -> KnownBatch | FullQueue | RateStatus | None:
        match outcome:
            case "requests":
                return FullQueue("requests", None, self.requests)
            case "tokens":
                return FullQueue("tokens", *next(iter(params.tokens.items())))
            case _:
                return outcome


def refusal_text(tenant: str, refused: FullQueue | RateStatus) -> str:
    """Why a call or a new batch is refused, in OpenAI's words."""
    if isinstance(refused, FullQueue):
        return queue_text(refused.queue, tenant=tenant, model=refused.model, limit=refused.limit)
    rate = refused.rate
    return rate_text(
        tenant=tenant,
        what=RATE_NAMES[rate.name],
        limit=rate.calls,
        wait_seconds=refused.wait_seconds,
    )
