"""Deliveries to webhook endpoints: lists them, and has the dispatcher send or test one."""

import time

from fastapi import APIRouter, Request

from gateway.auth import Tenant
from gateway.bodies import read_body
from gateway.dependencies import Use
from gateway.fields import require_one_of
from gateway.route_docs import addition, json_body
from gateway.webhook_rules import TestWebhookEndpoint, unreachable
from gateway.webhooks import PAGE, PageLimit
from shared import ids
from shared.errors import ConflictError, TransientError
from shared.openai.shapes import CursorPage
from shared.openai.webhooks import (
    EVENT_TYPES,
    WebhookAttempt,
    WebhookDelivery,
    WebhookEndpointTest,
)
from shared.state import State
from shared.state.webhook_trials import trial_bell

router = APIRouter()

#: One attempt takes 30 seconds at most.
_TEST_SECONDS = 35.0


@router.post(
    "/webhook_endpoints/{webhook_endpoint_id}/test",
    openapi_extra=json_body(TestWebhookEndpoint)
    | addition(
        "If the receiver cannot be reached, the answer is 400 with the code "
        "`webhook_endpoint_unreachable` and the reason."
    ),
)
async def test_webhook_endpoint(
    request: Request, webhook_endpoint_id: str, tenant: Tenant, services: Use
) -> WebhookEndpointTest:
    """Send one sample event and wait for the receiver's answer."""
    await services.state.webhooks.get(tenant, webhook_endpoint_id)
    params = await read_body(request, TestWebhookEndpoint)
    require_one_of(params.event_type, EVENT_TYPES, "event_type")
    attempt = await _trial(services.state, webhook_endpoint_id, params.event_type)
    if attempt.status_code is None:
        raise unreachable(webhook_endpoint_id, attempt.error)
    return WebhookEndpointTest(
        webhook_endpoint_id=webhook_endpoint_id,
        event_type=params.event_type,
        status_code=attempt.status_code,
    )


@router.get(
    "/webhook_endpoints/{webhook_endpoint_id}/deliveries",
    openapi_extra=addition("Not in OpenAI's API."),
)
async def list_webhook_deliveries(
    webhook_endpoint_id: str,
    tenant: Tenant,
    services: Use,
    *,
    after: str | None = None,
    limit: PageLimit = PAGE,
) -> CursorPage[WebhookDelivery]:
    """The endpoint's deliveries, newest first, with every attempt.

    A delivery that succeeded, or was given up after 72 hours, is listed for 7 more days.
    """
    found, has_more = await services.state.webhook_deliveries.page(
        tenant, webhook_endpoint_id, after=after, limit=limit or PAGE
    )
    return CursorPage.of(found, has_more=has_more)


@router.post(
    "/webhook_endpoints/{webhook_endpoint_id}/deliveries/{delivery_id}/redeliver",
    openapi_extra=addition("Not in OpenAI's API."),
)
async def redeliver_webhook(
    webhook_endpoint_id: str, delivery_id: str, tenant: Tenant, services: Use
) -> WebhookDelivery:
    """Send a delivery again under the same `webhook-id`, with retries for 72 hours from now.

    A delivery that is being sent at this moment is left alone.
    """
    await services.state.webhook_deliveries.redeliver(tenant, webhook_endpoint_id, delivery_id)
    return await services.state.webhook_deliveries.get(tenant, webhook_endpoint_id, delivery_id)


async def _trial(state: State, endpoint_id: str, event_type: str) -> WebhookAttempt:
    trial_id = ids.new_webhook_test_id()
    deadline = time.monotonic() + _TEST_SECONDS
    async with state.bells(trial_bell(trial_id)) as bells:
        if not await state.webhook_trials.start(endpoint_id, trial_id, event_type):
            raise ConflictError(
                f"Another test of the webhook endpoint '{endpoint_id}' is running: wait for its "
                "end."
            )
        while (left := deadline - time.monotonic()) > 0:
            await bells.wait(min(left, 1.0))
            if attempt := await state.webhook_trials.answer(trial_id):
                return attempt
    raise TransientError("No dispatcher has sent the test.")
