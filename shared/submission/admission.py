"""Decides whether a tenant may create another batch, and words the refusal."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

from shared.catalog import Catalog
from shared.openai.limits import RATE_NAMES, Amount, amount_text, rate_text
from shared.settings import SharedSettings
from shared.state import Exhausted, KnownBatch, NewBatchParams, Rate, RateStatus, State
from shared.tenants import TenantSettings

_HOUR = 3600


class Reached(NamedTuple):
    """A limit that the tenant has reached.

    `model` is the one that tokens are counted for, else None. After `wait_seconds` the same may
    work again; None if waiting alone does not help.
    """

    amount: Amount
    model: str | None
    limit: int
    used: int
    wait_seconds: float | None = None


class NewBatchCall(NamedTuple):
    """A batch that is to be created, with the bytes that it brings along."""

    tenant: str
    batch_id: str
    endpoint: str
    bytes: int = 0


Reservation = KnownBatch | Reached | RateStatus | None


@dataclass(frozen=True)
class NewBatchQuota:
    """How many batches a tenant may create per hour, and how much its running ones may hold.

    The numbers are for tenants for which nothing else is set; None is no limit.
    """

    catalog: Catalog
    batches_per_hour: int
    requests: int
    tokens: int
    mixed_batches: bool = False
    stored_bytes: int | None = None
    engine_deaths: int | None = None
    kept_batches: int | None = None

    @classmethod
    def of(cls, settings: SharedSettings, catalog: Catalog) -> Self:
        return cls(
            catalog,
            settings.batches_per_hour,
            settings.max_enqueued_requests,
            settings.max_enqueued_tokens,
            mixed_batches=settings.mixed_batches,
            stored_bytes=settings.max_stored_bytes,
            engine_deaths=settings.max_engine_deaths_per_day,
            kept_batches=settings.max_kept_batches,
        )

    async def reserve(self, state: State, tenant: str, batch_id: str, endpoint: str) -> Reservation:
        """Count the new batch unless it exists. Returns None if it may be created."""
        params = self._params(
            NewBatchCall(tenant, batch_id, endpoint), await state.tenants.settings(tenant)
        )
        return _outcome(params, await state.limits.reserve(params))

    async def reserve_all(self, state: State, batches: Sequence[NewBatchCall]) -> list[Reservation]:
        """`reserve` for each of them, in one round trip."""
        await state.tenants.look()
        params = [self._params(batch, state.tenants.of(batch.tenant)) for batch in batches]
        outcomes = await state.limits.reserve_all(params)
        return [_outcome(*pair) for pair in zip(params, outcomes, strict=True)]

    def token_limits(self, endpoint: str | None, settings: TenantSettings) -> dict[str, int]:
        """By model, how many prompt tokens the running batches of a tenant may hold.

        Only the models that serve the endpoint; all of them for None. What is set for the tenant
        takes precedence over the catalog.
        """
        quotas = self.catalog.token_quotas(
            None if self.mixed_batches else endpoint, default=self.tokens
        )
        if settings.enqueued_tokens is None:
            return quotas
        return dict.fromkeys(quotas, settings.enqueued_tokens)

    def _params(self, batch: NewBatchCall, settings: TenantSettings) -> NewBatchParams:
        return NewBatchParams(
            batch.tenant,
            batch.batch_id,
            batches_rate(settings.batches_per_hour or self.batches_per_hour),
            settings.enqueued_requests or self.requests,
            self.token_limits(batch.endpoint, settings),
            batch.bytes,
            _first(settings.stored_bytes, self.stored_bytes),
            _first(settings.engine_deaths_per_day, self.engine_deaths),
            _first(settings.kept_batches, self.kept_batches),
        )


def batches_rate(batches_per_hour: int) -> Rate:
    """The rate of new batches."""
    return Rate("batches", batches_per_hour, _HOUR, "batches_per_hour")


def refusal_text(tenant: str, refused: Reached | RateStatus) -> str:
    """Why a call or a new batch is refused, in OpenAI's words."""
    if isinstance(refused, Reached):
        return amount_text(
            refused.amount,
            tenant=tenant,
            limit=refused.limit,
            used=refused.used,
            model=refused.model,
        )
    rate = refused.rate
    return rate_text(
        tenant=tenant,
        what=RATE_NAMES[rate.name],
        limit=rate.calls,
        wait_seconds=refused.wait_seconds,
    )


def _outcome(
    params: NewBatchParams, outcome: KnownBatch | Exhausted | RateStatus | None
) -> Reservation:
    if not isinstance(outcome, Exhausted):
        return outcome
    model, tokens = next(iter(params.tokens.items()), (None, 0))
    limit = {
        "requests": params.requests,
        "tokens": tokens,
        "stored_bytes": params.stored_bytes or 0,
        "engine_deaths": params.engine_deaths or 0,
        "kept_batches": params.kept_batches or 0,
    }[outcome.limit]
    of_model = model if outcome.limit == "tokens" else None
    return Reached(outcome.limit, of_model, limit, outcome.used, outcome.wait_seconds)


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)
