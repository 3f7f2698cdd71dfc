"""Deliveries to webhook endpoints, which a batch's last change of status writes."""

import json
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from shared import ids
from shared.errors import ConflictError, NotFoundError
from shared.openai.webhooks import (
    DeliveryState,
    WebhookAttempt,
    WebhookDelivery,
    WebhookEvent,
    WebhookEventData,
)
from shared.state.client import Client
from shared.state.scripts import Scripts
from shared.state.webhooks import Webhooks, no_endpoint

#: How an attempt ended: delivered, to be retried, given up, or refused for ever (410).
Outcome = Literal["delivered", "retry", "failed", "gone"]


class Due(NamedTuple):
    """A claimed delivery with everything that an attempt needs. Times are Unix seconds."""

    endpoint: str
    tenant: str
    id: str
    #: A fencing number: an attempt that outlives its claim cannot be settled.
    claim: int
    url: str
    secrets: tuple[str, ...]
    event: WebhookEvent
    since: float
    #: Failed attempts since then.
    tries: int
    #: How many times in a row the endpoint has asked to slow down.
    slow: int
    #: The W3C trace context of the batch's submission; empty without one.
    traceparent: str = ""


class WebhookDeliveries:
    """The noun `webhook delivery` of State."""

    def __init__(
        self, redis: Client, scripts: Scripts, namespace: str, endpoints: Webhooks
    ) -> None:
        self._redis = redis
        self._scripts = scripts
        self._namespace = namespace
        self._endpoints = endpoints

    async def get(self, tenant: str, endpoint_id: str, delivery_id: str) -> WebhookDelivery:
        """One delivery. Raises NotFoundError."""
        await self._endpoints.get(tenant, endpoint_id)
        found = await self._deliveries([delivery_id])
        if not found or found[0].webhook_endpoint_id != endpoint_id:
            raise _no_delivery(delivery_id)
        return found[0]

    async def page(
        self, tenant: str, endpoint_id: str, *, after: str | None, limit: int
    ) -> tuple[list[WebhookDelivery], bool]:
        """An endpoint's deliveries, newest first, after the cursor; and whether there are more.

        An unknown cursor gives an empty page. Raises NotFoundError.
        """
        await self._endpoints.get(tenant, endpoint_id)
        index = f"{self._namespace}webhook-deliveries:{endpoint_id}"
        position = 0
        if after is not None:
            rank = await self._redis.zrevrank(index, after)
            if rank is None:
                return [], False
            position = rank + 1
        found: list[WebhookDelivery] = []
        # Expired deliveries are skipped, so this reads on until the page is full.
        while len(found) <= limit:
            batch = await self._redis.zrevrange(index, position, position + max(limit, 100))
            if not batch:
                break
            position += len(batch)
            found += await self._deliveries(batch)
        return found[:limit], len(found) > limit

    async def redeliver(self, tenant: str, endpoint_id: str, delivery_id: str) -> None:
        """Send a delivery again now, with retries for 72 hours.

        Raises NotFoundError, and ConflictError for a disabled endpoint.
        """
        outcome: str = await self._scripts.run(
            "redeliver_webhook", tenant, endpoint_id, delivery_id
        )
        match outcome:
            case "no endpoint":
                raise no_endpoint(endpoint_id)
            case "no delivery":
                raise _no_delivery(delivery_id)
            case "disabled":
                raise ConflictError(
                    f"The webhook endpoint '{endpoint_id}' answered 410 and is disabled. "
                    "Update it to enable it again."
                )
            case _:
                return

    async def claim(
        self,
        *,
        limit: int,
        per_endpoint: int,
        lease_seconds: float,
        under_way: Mapping[str, int] | None = None,
    ) -> tuple[list[Due], float | None]:
        """Claim due deliveries. Also returns the seconds until more may be due, if known.

        Claims up to `limit`, keeps each endpoint at no more than `per_endpoint` at once, and gives
        a tenant no more than it leaves free of the limit, with those that it has `under_way`.
        """
        answer = json.loads(
            await self._scripts.run(
                "claim_webhooks",
                limit,
                per_endpoint,
                int(lease_seconds * 1000),
                json.dumps(dict(under_way or {})),
            )
        )
        wait: float = answer["wait_ms"] / 1000
        return [_due(*one) for one in answer["granted"]], None if wait < 0 else wait

    async def settle(
        self,
        due: Due,
        outcome: Outcome,
        attempt: WebhookAttempt,
        *,
        wait_seconds: float,
        pause_seconds: float,
        per_endpoint: int,
    ) -> bool:
        """Record an attempt and its consequences. Returns False if the claim has been lost.

        `wait_seconds` only applies to a retry. The endpoint is not called for `pause_seconds`.
        Where it has got another URL meanwhile, what the former receiver has said does not bind the
        new one, which gets what the former one has refused.
        """
        done = await self._scripts.run(
            "settle_webhook",
            due.endpoint,
            due.id,
            due.claim,
            outcome,
            attempt.model_dump_json(),
            int(wait_seconds * 1000),
            int(pause_seconds * 1000),
            per_endpoint,
            due.url,
        )
        return bool(done)

    async def _deliveries(self, delivery_ids: Sequence[str]) -> list[WebhookDelivery]:
        async with self._redis.pipeline(transaction=False) as pipe:
            for delivery_id in delivery_ids:
                pipe.hgetall(f"{self._namespace}webhook-delivery:{delivery_id}")
            found = zip(delivery_ids, await pipe.execute(), strict=True)
        return [_delivery(delivery_id, fields) for delivery_id, fields in found if fields]


def _event(kind: str, batch: str, sequence: str, created_at: str) -> WebhookEvent:
    return WebhookEvent(
        id=ids.event_id(batch, int(sequence)),
        type=kind,
        created_at=int(created_at),
        data=WebhookEventData(id=batch),
    )


def _delivery(delivery_id: str, fields: Mapping[str, str]) -> WebhookDelivery:
    state: DeliveryState = fields["state"]  # type: ignore[assignment]  # the scripts write no other
    return WebhookDelivery(
        id=delivery_id,
        webhook_endpoint_id=fields["endpoint"],
        created_at=int(fields["created_at"]),
        event=_event(fields["type"], fields["batch"], fields["sequence"], fields["created_at"]),
        state=state,
        attempts=[WebhookAttempt(**one) for one in json.loads(fields.get("attempts", "[]"))],
        next_attempt_at=int(fields["next_at_ms"]) // 1000 if state == "pending" else None,
    )


def _due(
    endpoint: str,
    delivery_id: str,
    claim: int,
    url: str,
    secrets: list[str],
    slow: str,
    tenant: str,
    traceparent: str,
    kind: str,
    batch: str,
    sequence: str,
    created_at: str,
    since_ms: str,
    tries: str,
) -> Due:
    return Due(
        endpoint=endpoint,
        tenant=tenant,
        id=delivery_id,
        claim=claim,
        url=url,
        secrets=tuple(secrets),
        event=_event(kind, batch, sequence, created_at),
        since=int(since_ms) / 1000,
        tries=int(tries),
        slow=int(slow),
        traceparent=traceparent,
    )


def _no_delivery(delivery_id: str) -> NotFoundError:
    return NotFoundError(f"No webhook delivery found with id '{delivery_id}'.", param="delivery_id")
