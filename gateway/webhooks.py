"""OpenAI's webhook endpoints. The dispatcher sends to them."""

import asyncio
from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Query, Request

from gateway.auth import Tenant
from gateway.bodies import read_body, read_optional_body
from gateway.dependencies import Services, Use
from gateway.limits import limits_of
from gateway.route_docs import addition, json_body
from gateway.webhook_rules import (
    CreateWebhookEndpoint,
    RotateWebhookSecret,
    UpdateWebhookEndpoint,
    bad_url,
    require_event_types,
)
from shared import ids
from shared.errors import NotFoundError
from shared.ledger.webhook_endpoints import remove_webhook, save_webhook
from shared.openai.shapes import CursorPage
from shared.openai.webhooks import (
    EVENT_TYPES,
    DeletedWebhookEndpoint,
    WebhookEndpoint,
    WebhookEndpointWithSecret,
    WebhookEventTypes,
    new_secret,
    secret_hint,
)
from shared.outbound import RefusedAddressError, read_url
from shared.state import State

router = APIRouter()

PAGE = 20
PageLimit = Annotated[int, Query(ge=0, le=100)]
#: A host that cannot be resolved in this time is accepted: each delivery resolves it again.
_RESOLVE_SECONDS = 3.0


@router.post("/webhook_endpoints", openapi_extra=json_body(CreateWebhookEndpoint))
async def create_webhook_endpoint(
    request: Request, tenant: Tenant, services: Use
) -> WebhookEndpointWithSecret:
    """Register a URL for the ends of batches. Its signing secret is shown in this answer only."""
    params = await read_body(request, CreateWebhookEndpoint)
    event_types = require_event_types(params.event_types)
    await _check_url(params.url, services)
    secret, endpoint_id = new_secret(), ids.new_webhook_endpoint_id()
    request.state.made = endpoint_id
    await services.state.webhooks.create(
        tenant,
        endpoint_id,
        {
            "name": params.name,
            "url": params.url,
            "event_types": event_types,
            "secret": secret,
            "hint": secret_hint(secret),
        },
        max_endpoints=(await limits_of(services, tenant)).webhook_endpoints or 0,
    )
    await save_webhook(services.state, services.storage, tenant, endpoint_id)
    return await _with_secret(services.state, tenant, endpoint_id, secret)


@router.get("/webhook_endpoints")
async def list_webhook_endpoints(
    tenant: Tenant, services: Use, *, after: str | None = None, limit: PageLimit = PAGE
) -> CursorPage[WebhookEndpoint]:
    """All webhook endpoints, newest first."""
    # The SDKs' own test suites ask for 0 and expect an answer.
    found, has_more = await services.state.webhooks.page(tenant, after=after, limit=limit or PAGE)
    return CursorPage.of([endpoint.to_openai() for endpoint in found], has_more=has_more)


@router.get("/webhook_event_types")
async def list_webhook_event_types(_: Tenant) -> WebhookEventTypes:
    """The event types that an endpoint may ask for."""
    return WebhookEventTypes(data=list(EVENT_TYPES))


@router.get("/webhook_endpoints/{webhook_endpoint_id}")
async def retrieve_webhook_endpoint(
    webhook_endpoint_id: str, tenant: Tenant, services: Use
) -> WebhookEndpoint:
    """One webhook endpoint."""
    return (await services.state.webhooks.get(tenant, webhook_endpoint_id)).to_openai()


@router.post(
    "/webhook_endpoints/{webhook_endpoint_id}",
    openapi_extra=json_body(UpdateWebhookEndpoint)
    | addition("A disabled endpoint has one more field, `disabled_at`."),
)
async def update_webhook_endpoint(
    request: Request, webhook_endpoint_id: str, tenant: Tenant, services: Use
) -> WebhookEndpoint:
    """Change the fields that are given.

    An endpoint that has answered 410 gets no deliveries until it is updated.
    """
    await services.state.webhooks.get(tenant, webhook_endpoint_id)
    params = await read_body(request, UpdateWebhookEndpoint)
    fields: dict[str, str] = {}
    if params.name is not None:
        fields["name"] = params.name
    if params.event_types is not None:
        fields["event_types"] = require_event_types(params.event_types)
    if params.url is not None:
        await _check_url(params.url, services)
        fields["url"] = params.url
    await services.state.webhooks.update(tenant, webhook_endpoint_id, fields)
    await save_webhook(services.state, services.storage, tenant, webhook_endpoint_id)
    return (await services.state.webhooks.get(tenant, webhook_endpoint_id)).to_openai()


@router.delete("/webhook_endpoints/{webhook_endpoint_id}")
async def delete_webhook_endpoint(
    webhook_endpoint_id: str, tenant: Tenant, services: Use
) -> DeletedWebhookEndpoint:
    """Delete the endpoint with its deliveries."""
    await services.state.webhooks.get(tenant, webhook_endpoint_id)
    await remove_webhook(services.storage, tenant, webhook_endpoint_id)
    # It was there: another call has deleted it, or this one, and the first answer was lost.
    with suppress(NotFoundError):
        await services.state.webhooks.delete(tenant, webhook_endpoint_id)
    return DeletedWebhookEndpoint(id=webhook_endpoint_id)


@router.post(
    "/webhook_endpoints/{webhook_endpoint_id}/rotate_secret",
    openapi_extra=json_body(RotateWebhookSecret, is_required=False),
)
async def rotate_webhook_secret(
    request: Request, webhook_endpoint_id: str, tenant: Tenant, services: Use
) -> WebhookEndpointWithSecret:
    """Replace the signing secret. The new one is shown in this answer only."""
    await services.state.webhooks.get(tenant, webhook_endpoint_id)
    params = await read_optional_body(request, RotateWebhookSecret)
    secret = new_secret()
    await services.state.webhooks.rotate(
        tenant,
        webhook_endpoint_id,
        secret=secret,
        hint=secret_hint(secret),
        keep_old=params.keep_old_secret_active_for_24_hours,
    )
    await save_webhook(services.state, services.storage, tenant, webhook_endpoint_id)
    return await _with_secret(services.state, tenant, webhook_endpoint_id, secret)


async def _with_secret(
    state: State, tenant: str, endpoint_id: str, secret: str
) -> WebhookEndpointWithSecret:
    endpoint = (await state.webhooks.get(tenant, endpoint_id)).to_openai()
    return WebhookEndpointWithSecret(**endpoint.model_dump(), signing_secret=secret)


async def _check_url(url: str, services: Services) -> None:
    """Raise InvalidInputError for a URL that would never be called.

    The host's addresses are checked again for each delivery.
    """
    is_http_allowed = services.settings.webhook_http
    try:
        target = read_url(url)
    except ValueError:
        raise bad_url(url, "expected a URL such as 'https://example.com/hook'") from None
    if target.scheme != "https" and not is_http_allowed:
        raise bad_url(url, "expected a URL that begins with 'https://'")
    try:
        async with asyncio.timeout(_RESOLVE_SECONDS):
            await services.guard.addresses(target.host, target.port)
    except RefusedAddressError as error:
        raise bad_url(url, "the host has to be at a public address") from error
    except (TimeoutError, OSError):
        return
