"""Webhook endpoints and the deliveries to them, which a batch's last change of status writes.

Signing secrets lie here as they are: they are needed to sign with, and whoever can read them here
can also change what is signed.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from shared import ids
from shared.errors import ConflictError, InvalidInputError, NotFoundError
from shared.openai.webhooks import (
    SAMPLE_BATCH,
    DeliveryState,
    WebhookAttempt,
    WebhookDelivery,
    WebhookEndpoint,
    WebhookEvent,
    WebhookEventData,
)
from shared.state.client import Client
from shared.state.scripts import Scripts, pairs

#: How an attempt ended: taken, to be tried again, given up, or refused for ever (410).
Outcome = Literal["delivered", "retry", "failed", "gone"]

_OLD_SECRET_SECONDS = 86_400
#: A test that nobody has begun by then is not made any more; whoever asked has gone.
_TEST_SECONDS = 40


class EndpointRecord(NamedTuple):
    """An endpoint without its secrets."""

    id: str
    tenant: str
    name: str
    url: str
    event_types: tuple[str, ...]
    created_at: int
    updated_at: int
    hint: str
    disabled_at: int | None

    def to_openai(self) -> WebhookEndpoint:
        """The endpoint as HTTP shows it."""
        return WebhookEndpoint(
            id=self.id,
            name=self.name,
            url=self.url,
            event_types=list(self.event_types),
            created_at=self.created_at,
            updated_at=self.updated_at,
            signing_secret_hint=self.hint,
            disabled_at=self.disabled_at,
        )


class Due(NamedTuple):
    """A claimed delivery with all that an attempt needs; times are Unix seconds."""

    endpoint: str
    id: str
    #: Fences whoever comes back later than the claim lasted.
    claim: int
    url: str
    secrets: tuple[str, ...]
    event: WebhookEvent
    since: float
    #: Attempts since then that have failed.
    tries: int
    #: How often in a row the endpoint has asked to slow down.
    slow: int


class Trial(NamedTuple):
    """A test delivery: one attempt, whose answer somebody waits for."""

    id: str
    endpoint: str
    url: str
    secrets: tuple[str, ...]
    event: WebhookEvent


class Webhooks:
    """The noun `webhook` of State."""

    def __init__(self, redis: Client, scripts: Scripts, namespace: str) -> None:
        self._redis = redis
        self._scripts = scripts
        self._namespace = namespace

    async def create(
        self,
        tenant: str,
        endpoint_id: str,
        fields: Mapping[str, str],
        *,
        most: int,
    ) -> None:
        """Make the endpoint; a repeat changes nothing.

        `fields` are name, url, event_types (with commas), secret and hint. Raises
        InvalidInputError if the tenant has `most` already.
        """
        if not await self._scripts.run("create_webhook", tenant, endpoint_id, most, *pairs(fields)):
            raise InvalidInputError(
                f"You have {most} webhook endpoints, and no more are allowed. Delete one first.",
                code="webhook_endpoint_limit_reached",
            )

    async def get(self, tenant: str, endpoint_id: str) -> EndpointRecord:
        """The tenant's endpoint. Raises NotFoundError, for another tenant's as for none."""
        found = await self._many([endpoint_id])
        if not found or found[0].tenant != tenant:
            raise _no_endpoint(endpoint_id)
        return found[0]

    async def update(self, tenant: str, endpoint_id: str, fields: Mapping[str, str]) -> None:
        """Change name, url or event types, and take up a disabled endpoint again.

        Raises NotFoundError.
        """
        if not await self._scripts.run("update_webhook", tenant, endpoint_id, *pairs(fields)):
            raise _no_endpoint(endpoint_id)

    async def rotate(
        self, tenant: str, endpoint_id: str, *, secret: str, hint: str, keep_old: bool
    ) -> None:
        """Sign with a new secret; with the old ones as well for a day, or not at all any more.

        Raises NotFoundError.
        """
        seconds = _OLD_SECRET_SECONDS if keep_old else 0
        if not await self._scripts.run(
            "rotate_webhook", tenant, endpoint_id, secret, hint, seconds
        ):
            raise _no_endpoint(endpoint_id)

    async def delete(self, tenant: str, endpoint_id: str) -> None:
        """Forget the endpoint, its secrets and its deliveries. Raises NotFoundError."""
        if not await self._scripts.run("delete_webhook", tenant, endpoint_id):
            raise _no_endpoint(endpoint_id)

    async def fields(self, endpoint_id: str) -> dict[str, str]:
        """All that S3 keeps of the endpoint, its secrets too; nothing when there is none."""
        fields: dict[str, str] = await self._redis.hgetall(
            f"{self._namespace}webhook:{endpoint_id}"
        )
        # What its receiver has asked for passes.
        return {name: fields[name] for name in fields if name not in ("slow", "paused_until_ms")}

    async def page(
        self, tenant: str, *, after: str | None, limit: int
    ) -> tuple[list[EndpointRecord], bool]:
        """A tenant's endpoints, newest first, after the cursor; and whether there are more.

        An unknown cursor gives an empty page.
        """
        # A tenant has few of them.
        found = await self._redis.zrevrange(f"{self._namespace}webhooks:{tenant}", 0, -1)
        if after is not None:
            found = found[found.index(after) + 1 :] if after in found else []
        return await self._many(found[:limit]), len(found) > limit

    async def delivery(self, tenant: str, endpoint_id: str, delivery_id: str) -> WebhookDelivery:
        """One delivery. Raises NotFoundError."""
        await self.get(tenant, endpoint_id)
        found = await self._deliveries([delivery_id])
        if not found or found[0].webhook_endpoint_id != endpoint_id:
            raise _no_delivery(delivery_id)
        return found[0]

    async def deliveries(
        self, tenant: str, endpoint_id: str, *, after: str | None, limit: int
    ) -> tuple[list[WebhookDelivery], bool]:
        """An endpoint's deliveries, newest first, after the cursor; and whether there are more.

        An unknown cursor gives an empty page. Raises NotFoundError.
        """
        await self.get(tenant, endpoint_id)
        index = f"{self._namespace}webhook-deliveries:{endpoint_id}"
        position = 0
        if after is not None:
            rank = await self._redis.zrevrank(index, after)
            if rank is None:
                return [], False
            position = rank + 1
        found: list[WebhookDelivery] = []
        # Some have reached the end of their time, so pages are read on until the answer is full.
        while len(found) <= limit:
            batch = await self._redis.zrevrange(index, position, position + max(limit, 100))
            if not batch:
                break
            position += len(batch)
            found += await self._deliveries(batch)
        return found[:limit], len(found) > limit

    async def redeliver(self, tenant: str, endpoint_id: str, delivery_id: str) -> None:
        """Send a delivery now, and for 72 hours from now if need be.

        Raises NotFoundError, and ConflictError for a disabled endpoint.
        """
        outcome: str = await self._scripts.run(
            "redeliver_webhook", tenant, endpoint_id, delivery_id
        )
        match outcome:
            case "no endpoint":
                raise _no_endpoint(endpoint_id)
            case "no delivery":
                raise _no_delivery(delivery_id)
            case "disabled":
                raise ConflictError(
                    f"The webhook endpoint '{endpoint_id}' has answered 410 and is disabled. "
                    "Update it to enable it again."
                )
            case _:
                return

    async def claim(
        self, *, most: int, each: int, lease_seconds: float
    ) -> tuple[list[Due], float | None]:
        """Deliveries whose time has come, and the seconds until there may be more, if known.

        At most `most`, and so many that no endpoint has more than `each` claimed at once.
        """
        answer = json.loads(
            await self._scripts.run("claim_webhooks", most, each, int(lease_seconds * 1000))
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
        each: int,
    ) -> bool:
        """Record an attempt and what follows from it; False if the claim is another's by now.

        `wait_seconds` counts only for a retry. No call is made to the endpoint for `pause_seconds`.
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
            each,
        )
        return bool(done)

    async def ask_for_trial(self, endpoint_id: str, trial_id: str, event_type: str) -> bool:
        """Have a sample event sent; False while another test of the endpoint is under way."""
        return bool(
            await self._scripts.run("try_webhook", endpoint_id, trial_id, event_type, _TEST_SECONDS)
        )

    async def trials(self, *, most: int) -> list[Trial]:
        """Test deliveries that nobody has begun; whoever reads them has to make them."""
        taken = await self._redis.lpop(f"{self._namespace}webhook-tests", most) if most else None
        wanted = [json.loads(text) for text in taken or ()]
        seconds, _ = await self._redis.time()
        found: list[Trial] = []
        for one in wanted:
            url, secret, old = await self._redis.hmget(
                f"{self._namespace}webhook:{one['endpoint']}", "url", "secret", "old_secrets"
            )
            if url and seconds - one["at"] < _TEST_SECONDS:
                event = WebhookEvent(
                    id=ids.event_id(SAMPLE_BATCH, 0),
                    type=one["type"],
                    created_at=one["at"],
                    data=WebhookEventData(id=SAMPLE_BATCH),
                )
                secrets = _live_secrets(secret, old, seconds)
                found.append(Trial(one["id"], one["endpoint"], url, secrets, event))
        return found

    async def finish_trial(self, trial: Trial, attempt: WebhookAttempt) -> None:
        """Tell whoever waits for it."""
        async with self._redis.pipeline(transaction=False) as pipe:
            answer = f"{self._namespace}webhook-test-answer:{trial.id}"
            pipe.set(answer, attempt.model_dump_json(), ex=_TEST_SECONDS)
            pipe.delete(f"{self._namespace}webhook-testing:{trial.endpoint}")
            pipe.publish(f"{self._namespace}bell:{trial_bell(trial.id)}", "1")
            await pipe.execute()

    async def trial_answer(self, trial_id: str) -> WebhookAttempt | None:
        """What came of a test; None while nothing has."""
        answer = await self._redis.get(f"{self._namespace}webhook-test-answer:{trial_id}")
        return WebhookAttempt.model_validate_json(answer) if answer else None

    async def _many(self, endpoint_ids: Sequence[str]) -> list[EndpointRecord]:
        async with self._redis.pipeline(transaction=False) as pipe:
            for endpoint_id in endpoint_ids:
                # Not all: secrets stay where they are.
                pipe.hmget(f"{self._namespace}webhook:{endpoint_id}", *_SHOWN)
            found = zip(endpoint_ids, await pipe.execute(), strict=True)
        return [_endpoint(endpoint_id, fields) for endpoint_id, fields in found if fields[0]]

    async def _deliveries(self, delivery_ids: Sequence[str]) -> list[WebhookDelivery]:
        async with self._redis.pipeline(transaction=False) as pipe:
            for delivery_id in delivery_ids:
                pipe.hgetall(f"{self._namespace}webhook-delivery:{delivery_id}")
            found = zip(delivery_ids, await pipe.execute(), strict=True)
        return [_delivery(delivery_id, fields) for delivery_id, fields in found if fields]


def trial_bell(trial_id: str) -> str:
    """The doorbell that rings when a test is over."""
    return f"webhook-test:{trial_id}"


_SHOWN = ("tenant", "name", "url", "event_types", "created_at", "updated_at", "hint", "disabled_at")


def _endpoint(endpoint_id: str, fields: Sequence[str | None]) -> EndpointRecord:
    tenant, name, url, event_types, created_at, updated_at, hint = map(str, fields[:-1])
    return EndpointRecord(
        id=endpoint_id,
        tenant=tenant,
        name=name,
        url=url,
        event_types=tuple(event_types.split(",")),
        created_at=int(created_at),
        updated_at=int(updated_at),
        hint=hint,
        disabled_at=int(fields[-1]) if fields[-1] else None,
    )


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
    kind: str,
    batch: str,
    sequence: str,
    created_at: str,
    since_ms: str,
    tries: str,
) -> Due:
    return Due(
        endpoint=endpoint,
        id=delivery_id,
        claim=claim,
        url=url,
        secrets=tuple(secrets),
        event=_event(kind, batch, sequence, created_at),
        since=int(since_ms) / 1000,
        tries=int(tries),
        slow=int(slow),
    )


def _live_secrets(secret: str, old: str | None, now: int) -> tuple[str, ...]:
    kept = json.loads(old) if old else []
    return (secret, *(text for text, until in kept if until > now))


def _no_endpoint(endpoint_id: str) -> NotFoundError:
    return NotFoundError(
        f"No webhook endpoint found with id '{endpoint_id}'.", param="webhook_endpoint_id"
    )


def _no_delivery(delivery_id: str) -> NotFoundError:
    return NotFoundError(f"No webhook delivery found with id '{delivery_id}'.", param="delivery_id")
