"""OpenAI's webhook endpoints, and what became of the deliveries to them. Sends nothing itself."""

import asyncio
import time
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from gateway.auth import Tenant
from gateway.dependencies import Services, Use
from gateway.fields import parsed, read_body, require_one_of
from shared import ids
from shared.errors import ConflictError, InvalidInputError, TransientError
from shared.ledger.webhook_endpoints import remove_webhook, save_webhook
from shared.openai.shapes import CursorPage
from shared.openai.webhooks import (
    EVENT_TYPES,
    DeletedWebhookEndpoint,
    WebhookAttempt,
    WebhookDelivery,
    WebhookEndpoint,
    WebhookEndpointTest,
    WebhookEndpointWithSecret,
    WebhookEventTypes,
    new_secret,
    secret_hint,
)
from shared.outbound import RefusedAddressError, read_url
from shared.state import State
from shared.state.webhooks import trial_bell

router = APIRouter()

_PAGE = 20
_SHOWN_CHARACTERS = 200
#: A name that nobody can resolve just now is taken: each delivery looks again.
_LOOK_UP_SECONDS = 3.0
#: One attempt takes 30 seconds at the most.
_TEST_SECONDS = 35.0

_Name = Annotated[str, Field(min_length=1, max_length=256)]
_Url = Annotated[str, Field(max_length=2048)]
_Page = Annotated[int, Query(ge=0, le=100)]


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class CreateWebhookEndpoint(_Body):
    """The body of `create_webhook_endpoint`."""

    name: _Name
    url: _Url
    event_types: list[str]


class UpdateWebhookEndpoint(_Body):
    """The body of `update_webhook_endpoint`; what is left out stays as it is."""

    name: _Name | None = None
    url: _Url | None = None
    event_types: list[str] | None = None


class RotateWebhookSecret(_Body):
    """The body of `rotate_webhook_secret`, which may be left out."""

    keep_old_secret_active_for_24_hours: bool = False


class TestWebhookEndpoint(_Body):
    """The body of `test_webhook_endpoint`."""

    event_type: str


def _documented(body: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    schema = body.model_json_schema()
    return {
        "requestBody": {"required": required, "content": {"application/json": {"schema": schema}}}
    }


@router.post("/webhook_endpoints", openapi_extra=_documented(CreateWebhookEndpoint))
async def create_webhook_endpoint(
    request: Request, tenant: Tenant, services: Use
) -> WebhookEndpointWithSecret:
    wish = await read_body(request, CreateWebhookEndpoint)
    event_types = _event_types(wish.event_types)
    await _check_url(wish.url, services)
    secret, endpoint_id = new_secret(), ids.new_webhook_endpoint_id()
    await services.state.webhooks.create(
        tenant,
        endpoint_id,
        {
            "name": wish.name,
            "url": wish.url,
            "event_types": event_types,
            "secret": secret,
            "hint": secret_hint(secret),
        },
        most=services.settings.max_webhook_endpoints,
    )
    await save_webhook(services.state, services.storage, tenant, endpoint_id)
    return await _with_secret(services.state, tenant, endpoint_id, secret)


@router.get("/webhook_endpoints")
async def list_webhook_endpoints(
    tenant: Tenant, services: Use, *, after: str | None = None, limit: _Page = _PAGE
) -> CursorPage[WebhookEndpoint]:
    # The SDKs' own test suites ask for 0 and expect an answer.
    found, has_more = await services.state.webhooks.page(tenant, after=after, limit=limit or _PAGE)
    return CursorPage.of([endpoint.to_openai() for endpoint in found], has_more=has_more)


@router.get("/webhook_event_types")
async def list_webhook_event_types(_: Tenant) -> WebhookEventTypes:
    return WebhookEventTypes(data=list(EVENT_TYPES))


@router.get("/webhook_endpoints/{webhook_endpoint_id}")
async def retrieve_webhook_endpoint(
    webhook_endpoint_id: str, tenant: Tenant, services: Use
) -> WebhookEndpoint:
    return (await services.state.webhooks.get(tenant, webhook_endpoint_id)).to_openai()


@router.post(
    "/webhook_endpoints/{webhook_endpoint_id}",
    description="An endpoint that has answered 410 gets no deliveries until it is updated.",
    openapi_extra={
        **_documented(UpdateWebhookEndpoint),
        "x-batchyard": "A disabled endpoint has one more field, `disabled_at`.",
    },
)
async def update_webhook_endpoint(
    request: Request, webhook_endpoint_id: str, tenant: Tenant, services: Use
) -> WebhookEndpoint:
    await services.state.webhooks.get(tenant, webhook_endpoint_id)
    wish = await read_body(request, UpdateWebhookEndpoint)
    fields: dict[str, str] = {}
    if wish.name is not None:
        fields["name"] = wish.name
    if wish.event_types is not None:
        fields["event_types"] = _event_types(wish.event_types)
    if wish.url is not None:
        await _check_url(wish.url, services)
        fields["url"] = wish.url
    await services.state.webhooks.update(tenant, webhook_endpoint_id, fields)
    await save_webhook(services.state, services.storage, tenant, webhook_endpoint_id)
    return (await services.state.webhooks.get(tenant, webhook_endpoint_id)).to_openai()


@router.delete("/webhook_endpoints/{webhook_endpoint_id}")
async def delete_webhook_endpoint(
    webhook_endpoint_id: str, tenant: Tenant, services: Use
) -> DeletedWebhookEndpoint:
    await services.state.webhooks.get(tenant, webhook_endpoint_id)
    await remove_webhook(services.storage, tenant, webhook_endpoint_id)
    await services.state.webhooks.delete(tenant, webhook_endpoint_id)
    return DeletedWebhookEndpoint(id=webhook_endpoint_id)


@router.post(
    "/webhook_endpoints/{webhook_endpoint_id}/rotate_secret",
    openapi_extra=_documented(RotateWebhookSecret, required=False),
)
async def rotate_webhook_secret(
    request: Request, webhook_endpoint_id: str, tenant: Tenant, services: Use
) -> WebhookEndpointWithSecret:
    await services.state.webhooks.get(tenant, webhook_endpoint_id)
    wish = (
        await read_body(request, RotateWebhookSecret)
        if _has_body(request)
        else parsed(b"{}", RotateWebhookSecret)
    )
    secret = new_secret()
    await services.state.webhooks.rotate(
        tenant,
        webhook_endpoint_id,
        secret=secret,
        hint=secret_hint(secret),
        keep_old=wish.keep_old_secret_active_for_24_hours,
    )
    await save_webhook(services.state, services.storage, tenant, webhook_endpoint_id)
    return await _with_secret(services.state, tenant, webhook_endpoint_id, secret)


@router.post(
    "/webhook_endpoints/{webhook_endpoint_id}/test",
    description="Sends one sample event and waits for the receiver's answer.",
    openapi_extra={
        **_documented(TestWebhookEndpoint),
        "x-batchyard": "A receiver that cannot be reached is a 400 with the code "
        "`webhook_endpoint_unreachable` and the reason.",
    },
)
async def test_webhook_endpoint(
    request: Request, webhook_endpoint_id: str, tenant: Tenant, services: Use
) -> WebhookEndpointTest:
    await services.state.webhooks.get(tenant, webhook_endpoint_id)
    wish = await read_body(request, TestWebhookEndpoint)
    require_one_of(wish.event_type, EVENT_TYPES, "event_type")
    attempt = await _trial(services.state, webhook_endpoint_id, wish.event_type)
    if attempt.status_code is None:
        raise InvalidInputError(
            f"The webhook endpoint '{webhook_endpoint_id}' could not be reached: {attempt.error}.",
            code="webhook_endpoint_unreachable",
        )
    return WebhookEndpointTest(
        webhook_endpoint_id=webhook_endpoint_id,
        event_type=wish.event_type,
        status_code=attempt.status_code,
    )


@router.get(
    "/webhook_endpoints/{webhook_endpoint_id}/deliveries",
    description="The endpoint's deliveries, newest first, with every attempt. One that was "
    "delivered, or given up after 72 hours, is listed for 7 days more.",
    openapi_extra={"x-batchyard": "Not in OpenAI's API."},
)
async def list_webhook_deliveries(
    webhook_endpoint_id: str,
    tenant: Tenant,
    services: Use,
    *,
    after: str | None = None,
    limit: _Page = _PAGE,
) -> CursorPage[WebhookDelivery]:
    found, has_more = await services.state.webhooks.deliveries(
        tenant, webhook_endpoint_id, after=after, limit=limit or _PAGE
    )
    return CursorPage.of(found, has_more=has_more)


@router.post(
    "/webhook_endpoints/{webhook_endpoint_id}/deliveries/{delivery_id}/redeliver",
    description="Sends a delivery again, under the same `webhook-id`, and tries for 72 hours from "
    "now if need be. One that is being sent right now is left alone.",
    openapi_extra={"x-batchyard": "Not in OpenAI's API."},
)
async def redeliver_webhook(
    webhook_endpoint_id: str, delivery_id: str, tenant: Tenant, services: Use
) -> WebhookDelivery:
    await services.state.webhooks.redeliver(tenant, webhook_endpoint_id, delivery_id)
    return await services.state.webhooks.delivery(tenant, webhook_endpoint_id, delivery_id)


async def _trial(state: State, endpoint_id: str, event_type: str) -> WebhookAttempt:
    trial_id = ids.new_webhook_test_id()
    deadline = time.monotonic() + _TEST_SECONDS
    async with state.bells(trial_bell(trial_id)) as bells:
        if not await state.webhooks.ask_for_trial(endpoint_id, trial_id, event_type):
            raise ConflictError(
                f"Another test of the webhook endpoint '{endpoint_id}' is under way."
            )
        while (left := deadline - time.monotonic()) > 0:
            await bells.wait(min(left, 1.0))
            if attempt := await state.webhooks.trial_answer(trial_id):
                return attempt
    raise TransientError("No dispatcher has sent the test.")


async def _with_secret(
    state: State, tenant: str, endpoint_id: str, secret: str
) -> WebhookEndpointWithSecret:
    endpoint = (await state.webhooks.get(tenant, endpoint_id)).to_openai()
    return WebhookEndpointWithSecret(**endpoint.model_dump(), signing_secret=secret)


def _event_types(wished: list[str]) -> str:
    """As the record keeps them. Raises InvalidInputError for one that does not exist, or none."""
    if not wished:
        raise InvalidInputError(
            "Invalid 'event_types': empty array. Expected an array with minimum length 1, but got "
            "an empty array instead.",
            param="event_types",
            code="empty_array",
        )
    for one in wished:
        require_one_of(one, EVENT_TYPES, "event_types")
    return ",".join(dict.fromkeys(wished))


async def _check_url(url: str, services: Services) -> None:
    """Raise InvalidInputError for a URL that would never be called.

    Where its name leads is looked at again for each delivery.
    """
    is_http_allowed = services.settings.webhook_http
    try:
        target = read_url(url)
    except ValueError:
        raise _bad_url(url, "expected a URL such as 'https://example.com/hook'") from None
    if target.scheme != "https" and not is_http_allowed:
        raise _bad_url(url, "expected a URL that begins with 'https://'")
    try:
        async with asyncio.timeout(_LOOK_UP_SECONDS):
            await services.guard.addresses(target.host, target.port)
    except RefusedAddressError as error:
        raise _bad_url(url, "the host has to be at a public address") from error
    except (TimeoutError, OSError):
        return


def _bad_url(url: str, why: str) -> InvalidInputError:
    return InvalidInputError(
        f"Invalid 'url': {why}, but got '{url[:_SHOWN_CHARACTERS]}'.",
        param="url",
        code="invalid_value",
    )


def _has_body(request: Request) -> bool:
    return (
        request.headers.get("content-length", "0") != "0" or "transfer-encoding" in request.headers
    )
