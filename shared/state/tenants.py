"""What operators have set for tenants, as every process knows it within a second; and what is used.

S3 has the same in `tenants/`; `shared/ledger/tenants.py` writes both.
"""

import math
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shared.retention import DAY_SECONDS
from shared.state.client import Client
from shared.state.limits import Rate
from shared.state.scripts import Scripts
from shared.tenants import EVERY_TENANT, TenantSettings, decode, encode

#: What was read is used for so long, and looked at again at the next use.
_FRESH_SECONDS = 1.0
_NOTHING = TenantSettings()


class Usage(NamedTuple):
    """What a tenant uses of its limits at this moment."""

    #: By the name of the rate.
    calls: Mapping[str, int]
    enqueued_requests: int
    #: By model.
    enqueued_tokens: Mapping[str, int]
    kept_batches: int
    stored_bytes: int
    event_streams: int
    downloads: int
    live_calls: int
    engine_deaths: int
    webhook_endpoints: int


class Holding(NamedTuple):
    """What a tenant has in its queue, in S3, and in engines at this moment."""

    requests: int
    #: By model.
    tokens: Mapping[str, int]
    stored_bytes: int
    live_calls: int = 0


class Tenants:
    """The noun `tenant` of State."""

    def __init__(self, redis: Client, scripts: Scripts, namespace: str) -> None:
        self._redis = redis
        self._scripts = scripts
        self._namespace = namespace
        self._known: Mapping[str, TenantSettings] = {}
        self._version: str | None = ""
        self._looked_at = -math.inf

    async def look(self) -> None:
        """Learn what is set, unless that was done a second ago. Raises TransientError."""
        began = time.monotonic()
        if began < self._looked_at + _FRESH_SECONDS:
            return
        version = await self._redis.get(f"{self._namespace}tenants-version")
        if version != self._version:
            self._known = await self.all()
            self._version = version
        self._looked_at = began

    def of(self, tenant: str) -> TenantSettings:
        """What held for the tenant at the last look: its own settings, over those for everybody."""
        common = self._known.get(EVERY_TENANT, _NOTHING)
        return self._known.get(tenant, _NOTHING).over(common)

    def own(self) -> Mapping[str, TenantSettings]:
        """The settings of each tenant that has some, at the last look."""
        return {name: one for name, one in self._known.items() if name != EVERY_TENANT}

    async def settings(self, tenant: str) -> TenantSettings:
        """What holds for the tenant. Raises TransientError."""
        await self.look()
        return self.of(tenant)

    async def spent(self, engine_deaths_per_day: int) -> frozenset[str]:
        """The tenants of whose requests as many engines have died today as may.

        `engine_deaths_per_day` is how many may where nothing is set. Raises TransientError.
        """
        await self.look()
        deaths = await self._redis.hgetall(_deaths_key(self._namespace))
        usual = TenantSettings(engine_deaths_per_day=engine_deaths_per_day)
        limits = {tenant: self.of(tenant).over(usual).engine_deaths_per_day for tenant in deaths}
        return frozenset(
            tenant for tenant in deaths if int(deaths[tenant]) >= (limits[tenant] or 0)
        )

    async def all(self) -> dict[str, TenantSettings]:
        """What is set, by tenant, and for every tenant under EVERY_TENANT."""
        found = await self._redis.hgetall(f"{self._namespace}tenants")
        return {tenant: decode(text) for tenant, text in found.items()}

    async def put(self, tenant: str, settings: TenantSettings) -> None:
        """Set all of the tenant's settings. Raises TransientError, also during a rebuild."""
        text = "" if settings == _NOTHING else encode(settings)
        await self._scripts.run("set_tenant", tenant, text, secrets.token_hex(8))
        self._looked_at = -math.inf

    async def known(self) -> set[str]:
        """Every tenant that has a key, a file or a setting of its own."""
        ns = self._namespace
        async with self._redis.pipeline(transaction=False) as pipe:
            pipe.hkeys(f"{ns}tenants")
            pipe.hkeys(f"{ns}stored")
            pipe.hvals(f"{ns}keys")
            set_, stored, digests = await pipe.execute()
        async with self._redis.pipeline(transaction=False) as pipe:
            for digest in digests:
                pipe.hget(f"{ns}key:{digest}", "tenant")
            owners = await pipe.execute()
        return {*set_, *stored, *filter(None, owners)} - {EVERY_TENANT}

    async def held(self, tenants: Sequence[str]) -> dict[str, Holding]:
        """What each of these tenants has now."""
        ns, now_ms = self._namespace, round(1000 * time.time())
        async with self._redis.pipeline(transaction=False) as pipe:
            for tenant in tenants:
                pipe.hgetall(f"{ns}enqueued:{tenant}")
                pipe.hget(f"{ns}stored", tenant)
                # Those that nobody renews any more have ended with their gateway.
                pipe.zcount(f"{ns}live-calls:{tenant}", now_ms, "+inf")
            answers = iter(await pipe.execute())
        return {tenant: _holding(*(next(answers) for _ in range(3))) for tenant in tenants}

    async def usage(self, tenant: str, rates: Sequence[Rate]) -> Usage:
        """What the tenant uses; the rates with the calls that it may make."""
        ns = self._namespace
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.time()
            pipe.mget([f"{ns}calls:{rate.name}:{tenant}" for rate in rates])
            pipe.hgetall(f"{ns}enqueued:{tenant}")
            pipe.hget(f"{ns}stored", tenant)
            pipe.zrange(f"{ns}streams:{tenant}", 0, -1, withscores=True)
            pipe.zrange(f"{ns}downloads:{tenant}", 0, -1, withscores=True)
            pipe.zrange(f"{ns}live-calls:{tenant}", 0, -1, withscores=True)
            pipe.hget(_deaths_key(ns), tenant)
            pipe.zcard(f"{ns}webhooks:{tenant}")
            pipe.zcard(f"{ns}batches:{tenant}")
            found = await pipe.execute()
        (seconds, micros), marks, queue, stored, *found = found
        streams, downloads, calls, deaths, hooks, batches = found
        now = seconds * 1_000_000 + micros
        held = _holding(queue, stored)
        return Usage(
            calls={
                rate.name: _used(rate, mark, now) for rate, mark in zip(rates, marks, strict=True)
            },
            enqueued_requests=held.requests,
            enqueued_tokens=held.tokens,
            kept_batches=batches,
            stored_bytes=held.stored_bytes,
            event_streams=sum(ends > now / 1000 for _, ends in streams),
            downloads=sum(ends > now / 1000 for _, ends in downloads),
            live_calls=sum(ends > now / 1000 for _, ends in calls),
            engine_deaths=int(deaths or 0),
            webhook_endpoints=hooks,
        )


def _holding(queue: Mapping[str, str], stored: str | None, live_calls: int = 0) -> Holding:
    tokens = {name.removeprefix("tokens:"): int(count) for name, count in queue.items()}
    requests = tokens.pop("requests", 0)
    return Holding(requests, tokens, max(0, int(stored or 0)), live_calls)


def _deaths_key(namespace: str) -> str:
    """Where the deaths of this day are counted, which begins at midnight UTC."""
    return f"{namespace}engine-deaths:{int(time.time()) // DAY_SECONDS}"


def _used(rate: Rate, mark: str | None, now: int) -> int:
    """How many calls are not free again, by the mark of the leaky bucket in microseconds."""
    calls, period = rate.arguments
    return max(0, math.ceil((float(mark or 0) - now) * calls / period))
