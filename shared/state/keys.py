"""API keys and their tenants. Only a key's digest is stored."""

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from shared import ids
from shared.errors import NotFoundError
from shared.state.batch_record import BatchRecord
from shared.state.client import Client
from shared.state.limits import Rate, RateStatus
from shared.state.scripts import Scripts

#: How many characters after the common prefix of all keys are kept for display.
_SHOWN_CHARACTERS = 4
#: Showing the start of a shorter key would reveal too much of it.
_MIN_SHOWN_LENGTH = 32


class KeyRecord(NamedTuple):
    """What is known about a key, without the key. Times are Unix seconds."""

    id: str
    tenant: str
    name: str
    #: The first characters of the key.
    prefix: str
    created_at: int
    #: Accurate to ten minutes; None before its first call.
    used_at: int | None
    revoked_at: int | None


class Admission(NamedTuple):
    """The tenant of a call and its rate limit status."""

    tenant: str
    rate_status: RateStatus
    #: The batch that was asked for, if it exists.
    batch: BatchRecord | None


class Keys:
    """The noun `API key` of State."""

    def __init__(self, redis: Client, scripts: Scripts, namespace: str) -> None:
        self._redis = redis
        self._scripts = scripts
        self._namespace = namespace

    async def add(
        self, tenant: str, key: str, *, name: str = "", created_at: int | None = None
    ) -> str:
        """Let `key` act for `tenant` and return the key's id. A known key is not changed."""
        digest = ids.api_key_digest(key)
        key_id = ids.api_key_id(digest)
        fields = ["tenant", tenant, "name", name, "prefix", shown_prefix(key)]
        if created_at is not None:
            fields += ["created_at", str(created_at)]
        await self._scripts.run("add_key", key_id, digest, *fields)
        return key_id

    async def create(self, tenant: str, *, name: str = "") -> str:
        """Create a key for `tenant`. It cannot be read again."""
        key = ids.new_api_key()
        await self.add(tenant, key, name=name)
        return key

    async def tenant(self, key: str) -> str | None:
        """The key's tenant; None if the key is unknown or revoked."""
        tenant, revoked_at = await self._redis.hmget(
            self._key(ids.api_key_digest(key)), "tenant", "revoked_at"
        )
        return None if revoked_at else tenant

    async def admit(
        self, key: str, rates: Sequence[Rate], *, batch_id: str = ""
    ) -> Admission | None:
        """Identify the tenant of a call, and count the call if all `rates` allow it.

        The same round trip reads the batch that the call is about, whichever tenant owns it.
        Returns None for an unknown or revoked key. Raises TransientError during a rebuild.
        """
        arguments = [part for rate in rates for part in (rate.name, *rate.arguments)]
        digest = ids.api_key_digest(key)
        found = await self._scripts.run("admit", digest, batch_id, *arguments)
        if not found:
            return None
        tenant, place, wait, left, reset, flat = found
        batch = BatchRecord.from_flat(flat) if flat else None
        return Admission(tenant, RateStatus(rates[place - 1], wait, left, reset), batch)

    async def get(self, key: str) -> KeyRecord:
        """The record of a key. Raises NotFoundError."""
        digest = ids.api_key_digest(key)
        fields = await self._redis.hgetall(self._key(digest))
        if not fields:
            raise NotFoundError("This API key does not exist.")
        return _record(ids.api_key_id(digest), fields)

    async def find(self, key_id: str) -> KeyRecord:
        """The record of the key with this id. Raises NotFoundError."""
        fields = await self._redis.hgetall(self._key(await self.digest(key_id)))
        return _record(key_id, fields)

    async def digest(self, key_id: str) -> str:
        """The digest of the key with this id. Raises NotFoundError."""
        digest: str | None = await self._redis.hget(f"{self._namespace}keys", key_id)
        if digest is None:
            raise NotFoundError(f"No API key found with id '{key_id}'.")
        return digest

    async def revoke(self, key_id: str, *, at: int | None = None) -> bool:
        """Refuse the key from now on. Returns False if it was revoked already.

        Raises NotFoundError.
        """
        await self.digest(key_id)
        return bool(await self._scripts.run("revoke_key", key_id, at or int(time.time())))

    async def all(self, tenant: str | None = None) -> list[KeyRecord]:
        """All keys or one tenant's, revoked ones included, oldest first."""
        digests = await self._redis.hgetall(f"{self._namespace}keys")
        async with self._redis.pipeline(transaction=False) as pipe:
            for digest in digests.values():
                pipe.hgetall(self._key(digest))
            found = zip(digests, await pipe.execute(), strict=True)
        records = [_record(key_id, fields) for key_id, fields in found]
        return sorted(
            (record for record in records if tenant in (None, record.tenant)),
            key=lambda record: (record.created_at, record.id),
        )

    def _key(self, digest: str) -> str:
        return f"{self._namespace}key:{digest}"


def _record(key_id: str, fields: Mapping[str, str]) -> KeyRecord:
    return KeyRecord(
        id=key_id,
        tenant=fields["tenant"],
        name=fields["name"],
        prefix=fields["prefix"],
        created_at=int(fields["created_at"]),
        used_at=int(fields["used_at"]) if "used_at" in fields else None,
        revoked_at=int(fields["revoked_at"]) if "revoked_at" in fields else None,
    )


def shown_prefix(key: str) -> str:
    """The start of the key that may be shown; empty for a short key."""
    return (
        key[: len(ids.API_KEY_PREFIX) + _SHOWN_CHARACTERS] if len(key) >= _MIN_SHOWN_LENGTH else ""
    )
