"""Webhook endpoints.

Signing secrets are stored in plain text, because they are needed for signing. Whoever can read them
in Redis could also change what is signed.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shared.errors import InvalidInputError, NotFoundError
from shared.openai.webhooks import WebhookEndpoint
from shared.state.client import Client
from shared.state.scripts import Scripts, pairs

_OLD_SECRET_SECONDS = 86_400


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
        """The endpoint as the HTTP API shows it."""
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
        max_endpoints: int,
    ) -> None:
        """Create the endpoint. A repeat changes nothing.

        `fields` are name, url, event_types (separated by commas), secret and hint. Raises
        InvalidInputError if the tenant already has `max_endpoints`.
        """
        if not await self._scripts.run(
            "create_webhook", tenant, endpoint_id, max_endpoints, *pairs(fields)
        ):
            raise InvalidInputError(
                f"You have {max_endpoints} webhook endpoints, the maximum. Delete one first.",
                code="webhook_endpoint_limit_reached",
            )

    async def get(self, tenant: str, endpoint_id: str) -> EndpointRecord:
        """The tenant's endpoint. Raises NotFoundError, also for another tenant's endpoint."""
        found = await self._many([endpoint_id])
        if not found or found[0].tenant != tenant:
            raise no_endpoint(endpoint_id)
        return found[0]

    async def update(self, tenant: str, endpoint_id: str, fields: Mapping[str, str]) -> None:
        """Change name, url or event types, and enable the endpoint again if it was disabled.

        Raises NotFoundError.
        """
        if not await self._scripts.run("update_webhook", tenant, endpoint_id, *pairs(fields)):
            raise no_endpoint(endpoint_id)

    async def rotate(
        self, tenant: str, endpoint_id: str, *, secret: str, hint: str, keep_old: bool
    ) -> None:
        """Sign with a new secret. With `keep_old`, the old ones also sign for another day.

        Raises NotFoundError.
        """
        seconds = _OLD_SECRET_SECONDS if keep_old else 0
        if not await self._scripts.run(
            "rotate_webhook", tenant, endpoint_id, secret, hint, seconds
        ):
            raise no_endpoint(endpoint_id)

    async def delete(self, tenant: str, endpoint_id: str) -> None:
        """Delete the endpoint, its secrets and its deliveries. Raises NotFoundError."""
        if not await self._scripts.run("delete_webhook", tenant, endpoint_id):
            raise no_endpoint(endpoint_id)

    async def fields(self, endpoint_id: str) -> dict[str, str]:
        """The fields that S3 keeps, secrets included; empty if there is no such endpoint."""
        fields: dict[str, str] = await self._redis.hgetall(
            f"{self._namespace}webhook:{endpoint_id}"
        )
        # The receiver's requests to slow down are temporary.
        return {name: fields[name] for name in fields if name not in ("slow", "paused_until_ms")}

    async def page(
        self, tenant: str, *, after: str | None, limit: int
    ) -> tuple[list[EndpointRecord], bool]:
        """A tenant's endpoints, newest first, after the cursor; and whether there are more.

        An unknown cursor gives an empty page.
        """
        # A tenant has few endpoints, so reading all of them is cheap.
        found = await self._redis.zrevrange(f"{self._namespace}webhooks:{tenant}", 0, -1)
        if after is not None:
            found = found[found.index(after) + 1 :] if after in found else []
        return await self._many(found[:limit]), len(found) > limit

    async def _many(self, endpoint_ids: Sequence[str]) -> list[EndpointRecord]:
        async with self._redis.pipeline(transaction=False) as pipe:
            for endpoint_id in endpoint_ids:
                # Only these fields, so that secrets are never read here.
                pipe.hmget(f"{self._namespace}webhook:{endpoint_id}", *_PUBLIC_FIELDS)
            found = zip(endpoint_ids, await pipe.execute(), strict=True)
        return [_endpoint(endpoint_id, fields) for endpoint_id, fields in found if fields[0]]


_PUBLIC_FIELDS = (
    "tenant",
    "name",
    "url",
    "event_types",
    "created_at",
    "updated_at",
    "hint",
    "disabled_at",
)


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


def no_endpoint(endpoint_id: str) -> NotFoundError:
    """The error for an endpoint that the tenant does not have."""
    return NotFoundError(
        f"No webhook endpoint found with id '{endpoint_id}'.", param="webhook_endpoint_id"
    )
