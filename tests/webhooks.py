"""Endpoints and deliverers as a test needs them."""

import asyncio
import contextlib
import itertools
import ssl
from collections.abc import AsyncIterator
from ipaddress import ip_network
from typing import NamedTuple

from redis.asyncio import Redis

from dispatcher.sender import Sender
from dispatcher.webhooks import Deliverer
from shared.errors import TransientError
from shared.openai.webhooks import EVENT_TYPES, WebhookDelivery, new_secret, secret_hint
from shared.outbound import Guard, Network, Resolver
from shared.state import State
from shared.tasks import end

LOOPBACK: tuple[Network, ...] = (ip_network("127.0.0.0/8"),)
#: Replaces pauses of seconds, minutes and hours.
SHORT = (0.02,) * 9

_numbers = itertools.count()


class Endpoint(NamedTuple):
    """An endpoint of a tenant, as it was made."""

    state: State
    tenant: str
    id: str
    secret: str

    async def deliveries(self) -> list[WebhookDelivery]:
        """All of them, newest first."""
        found, _ = await self.state.webhook_deliveries.page(
            self.tenant, self.id, after=None, limit=100
        )
        return found

    async def only(self) -> WebhookDelivery:
        """The only one."""
        (found,) = await self.deliveries()
        return found

    async def has(self, state: str, *, deliveries: int = 1) -> bool:
        """Whether so many of them are in that state, and no others there."""
        return [one.state for one in await self.deliveries()] == [state] * deliveries


async def an_endpoint(
    state: State, url: str, *, tenant: str = "acme", event_types: tuple[str, ...] = EVENT_TYPES
) -> Endpoint:
    """A new endpoint, unchecked as `State` is."""
    endpoint_id, secret = f"we_{next(_numbers):032x}", new_secret()
    await state.webhooks.create(
        tenant,
        endpoint_id,
        {
            "name": "n",
            "url": url,
            "event_types": ",".join(event_types),
            "secret": secret,
            "hint": secret_hint(secret),
        },
        max_endpoints=50,
    )
    return Endpoint(state, tenant, endpoint_id, secret)


@contextlib.asynccontextmanager
async def a_sender(
    *,
    networks: tuple[Network, ...] = LOOPBACK,
    timeout_seconds: float = 5.0,
    resolve: Resolver | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator[Sender]:
    """A sender that may call this machine."""
    guard = Guard(networks, resolve=resolve)
    sender = Sender(guard, timeout_seconds=timeout_seconds, tls=tls)
    try:
        yield sender
    finally:
        await sender.close()
        guard.close()


@contextlib.asynccontextmanager
async def delivering(
    state: State,
    *,
    networks: tuple[Network, ...] = LOOPBACK,
    timeout_seconds: float = 5.0,
    attempts: int = 64,
    each: int = 4,
    delays: tuple[float, ...] = SHORT,
) -> AsyncIterator[None]:
    """A deliverer at work; it has stopped when this ends."""
    async with a_sender(networks=networks, timeout_seconds=timeout_seconds) as sender:
        deliverer = Deliverer(
            state,
            sender,
            timeout_seconds=timeout_seconds,
            attempts=attempts,
            attempts_per_endpoint=each,
            delays=delays,
        )
        task = asyncio.create_task(_again_and_again(deliverer))
        try:
            yield
        finally:
            await end(task)


async def _again_and_again(deliverer: Deliverer) -> None:
    """As the dispatcher does it."""
    while True:
        with contextlib.suppress(TransientError):
            await deliverer.deliver()
        await asyncio.sleep(0.1)


async def let_claims_run_out(endpoint: Endpoint, redis_url: str, namespace: str) -> None:
    """As if the time of all of the endpoint's claims were over."""
    async with Redis.from_url(redis_url, decode_responses=True) as redis:
        claims = f"{namespace}webhook-claims:{endpoint.id}"
        for delivery_id in await redis.zrange(claims, 0, -1):
            await redis.zadd(claims, {delivery_id: 1})
        await redis.zadd(f"{namespace}webhooks-due", {endpoint.id: 1})
