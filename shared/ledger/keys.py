"""API keys in S3. Only their digests are stored."""

import time
from collections.abc import Sequence

import msgspec

from shared import ids
from shared.errors import BrokenObjectError
from shared.ledger.records import decoded, encoded
from shared.scopes import DEFAULT_SCOPES, Scope
from shared.state import KeyRecord, State
from shared.state.keys import shown_prefix
from shared.storage import Storage

KEYS = "keys/"


class StoredKey(msgspec.Struct, frozen=True, kw_only=True):
    """An API key without the key. Times are Unix seconds."""

    id: str
    digest: str
    tenant: str
    name: str
    prefix: str
    created_at: int
    #: None for never.
    expires_at: int | None = None
    scopes: tuple[Scope, ...] = DEFAULT_SCOPES
    revoked_at: int | None = None


def key_record_key(key_id: str) -> str:
    """The S3 key of an API key's record."""
    return f"{KEYS}{key_id}.json"


async def create_key(
    state: State,
    storage: Storage,
    tenant: str,
    *,
    name: str = "",
    expires_at: int | None = None,
    scopes: Sequence[Scope] = DEFAULT_SCOPES,
) -> str:
    """Create an API key. It cannot be read again."""
    key = ids.new_api_key()
    await add_key(state, storage, tenant, key, name=name, expires_at=expires_at, scopes=scopes)
    return key


async def add_key(
    state: State,
    storage: Storage,
    tenant: str,
    key: str,
    *,
    name: str = "",
    expires_at: int | None = None,
    scopes: Sequence[Scope] = DEFAULT_SCOPES,
) -> None:
    """Let `key` act for `tenant`. A known key is not changed, even if it is revoked."""
    digest = ids.api_key_digest(key)
    kept = StoredKey(
        id=ids.api_key_id(digest),
        digest=digest,
        tenant=tenant,
        name=name,
        prefix=shown_prefix(key),
        created_at=int(time.time()),
        expires_at=expires_at,
        scopes=tuple(scopes),
    )
    await storage.create(key_record_key(kept.id), encoded(kept))
    await state.keys.add(
        tenant,
        key,
        name=name,
        created_at=kept.created_at,
        expires_at=kept.expires_at,
        scopes=kept.scopes,
    )


async def change_key(
    state: State,
    storage: Storage,
    key_id: str,
    *,
    expires_at: int | None,
    scopes: Sequence[Scope],
) -> None:
    """Set when the key expires (None for never) and what it may be used for.

    S3 comes first, which a rebuild of Redis reads. If this breaks off, repeat it. Raises
    NotFoundError, and TransientError if a rebuild may undo the change.
    """
    kept = _kept(await state.keys.find(key_id), await state.keys.digest(key_id))
    changed = msgspec.structs.replace(kept, expires_at=expires_at, scopes=tuple(scopes))
    await storage.put(key_record_key(key_id), encoded(changed))
    await state.keys.change(key_id, expires_at=expires_at, scopes=scopes)


async def revoke_key(state: State, storage: Storage, key_id: str) -> bool:
    """Revoke the key for ever. Returns False if it was revoked already.

    Raises NotFoundError.
    """
    record = await state.keys.find(key_id)
    kept = _kept(record, await state.keys.digest(key_id))
    if record.revoked_at is None:
        kept = msgspec.structs.replace(kept, revoked_at=int(time.time()))
    await storage.put(key_record_key(key_id), encoded(kept))
    return await state.keys.revoke(key_id, at=kept.revoked_at)


async def save_key(state: State, storage: Storage, key_id: str) -> None:
    """Write the key's record again, as Redis has it. Raises NotFoundError."""
    kept = _kept(await state.keys.find(key_id), await state.keys.digest(key_id))
    await storage.put(key_record_key(key_id), encoded(kept))


def read_key(key: str, body: bytes) -> StoredKey:
    """The API key whose record has this S3 key and these bytes. Raises BrokenObjectError."""
    kept = decoded(key, body, StoredKey)
    if key_record_key(kept.id) != key or ids.api_key_id(kept.digest) != kept.id:
        raise BrokenObjectError(key, "it is the record of another API key")
    return kept


def to_record(kept: StoredKey) -> dict[str, str | int]:
    """The fields of the key's record in Redis."""
    fields = msgspec.to_builtins(kept)
    del fields["id"], fields["digest"]
    fields["scopes"] = " ".join(kept.scopes)
    return {name: value for name, value in fields.items() if value is not None}


def _kept(record: KeyRecord, digest: str) -> StoredKey:
    fields = record._asdict()
    del fields["last_used"]
    return StoredKey(digest=digest, **fields)
