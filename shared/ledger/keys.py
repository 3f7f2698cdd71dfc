"""API keys in S3. Only their digests are stored."""

import time

import msgspec

from shared import ids
from shared.errors import BrokenObjectError
from shared.ledger.records import decoded, encoded
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
    revoked_at: int | None = None


def key_record_key(key_id: str) -> str:
    """The S3 key of an API key's record."""
    return f"{KEYS}{key_id}.json"


async def create_key(state: State, storage: Storage, tenant: str, *, name: str = "") -> str:
    """Create an API key. It cannot be read again."""
    key = ids.new_api_key()
    await add_key(state, storage, tenant, key, name=name)
    return key


async def add_key(state: State, storage: Storage, tenant: str, key: str, *, name: str = "") -> None:
    """Let `key` act for `tenant`. A known key is not changed, even if it is revoked."""
    digest = ids.api_key_digest(key)
    kept = StoredKey(
        id=ids.api_key_id(digest),
        digest=digest,
        tenant=tenant,
        name=name,
        prefix=shown_prefix(key),
        created_at=int(time.time()),
    )
    await storage.create(key_record_key(kept.id), encoded(kept))
    await state.keys.add(tenant, key, name=name, created_at=kept.created_at)


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


def _kept(record: KeyRecord, digest: str) -> StoredKey:
    fields = record._asdict()
    del fields["used_at"]
    return StoredKey(digest=digest, **fields)
