"""API keys and their tenants. Only a key's digest is stored."""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from shared import ids
from shared.errors import NotFoundError
from shared.retention import DAY_SECONDS
from shared.scopes import DEFAULT_SCOPES, Scope, scopes_of
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
    #: None for never.
    expires_at: int | None
    scopes: tuple[Scope, ...]
    #: The day of its last call (UTC), as in `2026-11-22`; None before its first one.
    last_used: str | None
    revoked_at: int | None


class Admission(NamedTuple):
    """The tenant of a call, what its key may be used for, and its rate limit status."""

    tenant: str
    key_id: str
    scopes: tuple[Scope, ...]
    rate_status: RateStatus
    #: The batch that was asked for, if it exists.
    batch: BatchRecord | None


class Expired(NamedTuple):
    """The key of a call was valid until then (Unix seconds)."""

    at: int


class Keys:
    """The noun `API key` of State."""

    def __init__(self, redis: Client, scripts: Scripts, namespace: str) -> None:
        self._redis = redis
        self._scripts = scripts
        self._namespace = namespace

    async def add(
        self,
        tenant: str,
        key: str,
        *,
        name: str = "",
        created_at: int | None = None,
        expires_at: int | None = None,
        scopes: Sequence[Scope] = DEFAULT_SCOPES,
    ) -> str:
        """Let `key` act for `tenant` and return the key's id. A known key is not changed."""
        digest = ids.api_key_digest(key)
        key_id = ids.api_key_id(digest)
        fields = ["tenant", tenant, "name", name, "prefix", shown_prefix(key)]
        fields += ["scopes", " ".join(scopes)]
        if created_at is not None:
            fields += ["created_at", str(created_at)]
        if expires_at is not None:
            fields += ["expires_at", str(expires_at)]
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
    ) -> Admission | Expired | None:
        """Identify the tenant of a call, and count the call if all `rates` allow it.

        The same round trip reads the batch that the call is about, whichever tenant owns it.
        Returns None for an unknown or revoked key. Raises TransientError during a rebuild.
        """
        return await self.admit_digest(ids.api_key_digest(key), rates, batch_id=batch_id)

    async def admit_digest(
        self, digest: str, rates: Sequence[Rate], *, batch_id: str = ""
    ) -> Admission | Expired | None:
        """As `admit`, for the key with this digest."""
        arguments = [part for rate in rates for part in (rate.name, rate.setting, *rate.arguments)]
        found = await self._scripts.run("admit", digest, batch_id, *arguments)
        if not found:
            return None
        if len(found) == 1:
            return Expired(int(found[0]))
        tenant, scopes, (place, calls, wait, left, reset), text = found
        return Admission(
            tenant,
            ids.api_key_id(digest),
            _scopes(scopes),
            RateStatus(rates[place - 1]._replace(calls=calls), wait, left, reset),
            BatchRecord.from_text(text) if text else None,
        )

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
            raise _no_key(key_id)
        return digest

    async def change(self, key_id: str, *, expires_at: int | None, scopes: Sequence[Scope]) -> None:
        """Set when the key expires (Unix seconds; None for never) and what it may be used for.

        Raises NotFoundError.
        """
        expires = "" if expires_at is None else expires_at
        if not await self._scripts.run("change_key", key_id, expires, " ".join(scopes)):
            raise _no_key(key_id)

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
        expires_at=int(fields["expires_at"]) if "expires_at" in fields else None,
        scopes=_scopes(fields.get("scopes", "")),
        last_used=_day(int(fields["used_day"])) if "used_day" in fields else None,
        revoked_at=int(fields["revoked_at"]) if "revoked_at" in fields else None,
    )


def _scopes(text: str) -> tuple[Scope, ...]:
    """The scopes of a stored key; a key without any was created before there were some."""
    return scopes_of(text.split()) if text else DEFAULT_SCOPES


def _day(number: int) -> str:
    return datetime.fromtimestamp(number * DAY_SECONDS, UTC).date().isoformat()


def _no_key(key_id: str) -> NotFoundError:
    return NotFoundError(f"No API key found with id '{key_id}'.")


def shown_prefix(key: str) -> str:
    """The start of the key that may be shown; empty for a short key."""
    return (
        key[: len(ids.API_KEY_PREFIX) + _SHOWN_CHARACTERS] if len(key) >= _MIN_SHOWN_LENGTH else ""
    )
