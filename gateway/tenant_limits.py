"""What a tenant may do and have, and how much of it is used."""

from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, ConfigDict, Field

from gateway.auth import Tenant
from gateway.dependencies import Use
from gateway.limits import call_rates, limits_of
from gateway.route_docs import addition
from shared.state import Rate
from shared.submission.admission import batches_rate
from shared.tenants import LIMITS, weights

router = APIRouter()


class _Shape(BaseModel):
    model_config = ConfigDict(frozen=True)


class Limit(_Shape):
    """A limit, and what is used of it."""

    limit: int
    used: int


class ModelLimit(Limit):
    """A limit that each model has for itself."""

    model: str


class Limits(_Shape):
    """The limits of the key's tenant."""

    object: Literal["limits"] = "limits"
    tenant: str
    weight: float = Field(
        description="In the fair share: with twice the weight, a tenant gets twice the share of an "
        "engine."
    )
    models: list[str] = Field(description="The models that you may use.")
    requests_per_minute: Limit = Field(description=LIMITS["requests_per_minute"])
    file_requests_per_minute: Limit = Field(description=LIMITS["file_requests_per_minute"])
    batches_per_hour: Limit = Field(description=LIMITS["batches_per_hour"])
    enqueued_requests: Limit = Field(description=LIMITS["enqueued_requests"])
    enqueued_tokens: list[ModelLimit] = Field(description=LIMITS["enqueued_tokens"])
    kept_batches: Limit = Field(description=LIMITS["kept_batches"])
    stored_bytes: Limit = Field(description=LIMITS["stored_bytes"])
    event_streams: Limit = Field(description=LIMITS["event_streams"])
    downloads: Limit = Field(description=LIMITS["downloads"])
    live_requests_per_minute: Limit = Field(description=LIMITS["live_requests_per_minute"])
    live_tokens_per_minute: Limit = Field(description=LIMITS["live_tokens_per_minute"])
    live_calls: Limit = Field(description=LIMITS["live_calls"])
    engine_deaths_per_day: Limit = Field(description=LIMITS["engine_deaths_per_day"])
    webhook_endpoints: Limit = Field(description=LIMITS["webhook_endpoints"])
    custom_id_characters: int = Field(description=LIMITS["custom_id_characters"])


@router.get(
    "/limits",
    openapi_extra=addition("An addition to OpenAI's API. SDK: client.get(path, cast_to=object)."),
)
async def retrieve_limits(tenant: Tenant, services: Use) -> Limits:
    """Your limits, and what you use of them at this moment."""
    state, catalog = services.state, services.catalog
    limits = await limits_of(services, tenant)
    own = await state.tenants.settings(tenant)
    every, files = (
        rate._replace(calls=getattr(limits, rate.setting))
        for rate in call_rates("/v1/files", services.settings)
    )
    batches = batches_rate(limits.batches_per_hour or 0)
    live = Rate("live", limits.live_requests_per_minute or 1, 60)
    tokens = Rate("live-tokens", limits.live_tokens_per_minute or 1, 60)
    used = await state.tenants.usage(tenant, (every, files, batches, live, tokens))

    def calls(name: str, limit: int) -> Limit:
        return Limit(limit=limit, used=min(limit, used.calls[name]))

    def amount(limit: int | None, count: int) -> Limit:
        return Limit(limit=limit or 0, used=count)

    return Limits(
        tenant=tenant,
        weight=weights(state.tenants.own(), services.settings.tenant_weights).get(tenant, 1.0),
        models=list(filter(limits.may_use, catalog.served_names())),
        requests_per_minute=calls("requests", every.calls),
        file_requests_per_minute=calls("files", files.calls),
        batches_per_hour=calls("batches", batches.calls),
        enqueued_requests=amount(limits.enqueued_requests, used.enqueued_requests),
        enqueued_tokens=[
            ModelLimit(model=model, limit=limit, used=used.enqueued_tokens.get(model, 0))
            for model, limit in services.quota.token_limits(None, own).items()
            if limits.may_use(model)
        ],
        kept_batches=amount(limits.kept_batches, used.kept_batches),
        stored_bytes=amount(limits.stored_bytes, used.stored_bytes),
        event_streams=amount(limits.event_streams, used.event_streams),
        downloads=amount(limits.downloads, used.downloads),
        live_requests_per_minute=calls("live", live.calls),
        live_tokens_per_minute=calls("live-tokens", tokens.calls),
        live_calls=amount(limits.live_calls, used.live_calls),
        engine_deaths_per_day=amount(limits.engine_deaths_per_day, used.engine_deaths),
        webhook_endpoints=amount(limits.webhook_endpoints, used.webhook_endpoints),
        custom_id_characters=limits.custom_id_characters or 0,
    )
