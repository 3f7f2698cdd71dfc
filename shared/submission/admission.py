"""Whether a tenant may have a further batch, by whatever door, and the words where it may not."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from shared.catalog import Catalog
from shared.openai.limits import RATE_NAMES, queue_text, rate_text
from shared.settings import SharedSettings
from shared.state import Known, NewBatchWish, Queue, Rate, Standing, State

_HOUR = 3600


class FullQueue(NamedTuple):
    """What a tenant's running batches hold already; `model` is None for requests."""

    queue: Queue
    model: str | None
    limit: int


@dataclass(frozen=True)
class NewBatchQuota:
    """How many new batches an hour, and how much in all running ones."""

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
    ) -> Known | FullQueue | Standing | None:
        """Count the new batch, unless it is known; None says that it may be made."""
        wish = self._wish(tenant, batch_id, endpoint)
        outcome = await state.limits.reserve(
            tenant, batch_id, rate=wish.rate, requests=wish.requests, tokens=wish.tokens
        )
        return self._named(wish, outcome)

    async def reserve_all(
        self, state: State, batches: Sequence[tuple[str, str, str]]
    ) -> list[Known | FullQueue | Standing | None]:
        """`reserve` for each tenant, batch id and endpoint, in one round trip."""
        wishes = [self._wish(*batch) for batch in batches]
        outcomes = await state.limits.reserve_all(wishes)
        return [self._named(*pair) for pair in zip(wishes, outcomes, strict=True)]

    def _wish(self, tenant: str, batch_id: str, endpoint: str) -> NewBatchWish:
        tokens = self.catalog.token_quotas(
            None if self.mixed_batches else endpoint, default=self.tokens
        )
        return NewBatchWish(tenant, batch_id, self.rate, self.requests, tokens)

    def _named(
        self, wish: NewBatchWish, outcome: Known | Queue | Standing | None
    ) -> Known | FullQueue | Standing | None:
        match outcome:
            case "requests":
                return FullQueue("requests", None, self.requests)
            case "tokens":
                return FullQueue("tokens", *next(iter(wish.tokens.items())))
            case _:
                return outcome


def refusal_text(tenant: str, refused: FullQueue | Standing) -> str:
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
