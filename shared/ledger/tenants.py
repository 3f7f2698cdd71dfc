"""What operators have set for tenants, in S3: one object for each tenant that has settings."""

from collections.abc import Mapping
from typing import Any

from shared.errors import NotFoundError
from shared.ledger.records import decoded, encoded, read_record
from shared.state import State
from shared.storage import Storage
from shared.tenants import EVERY_TENANT, TenantSettings, changed

TENANTS = "tenants/"
#: No tenant's name begins like this.
_EVERYBODY = "_all"


def tenant_key(tenant: str) -> str:
    """The S3 key of a tenant's settings."""
    return f"{TENANTS}{_EVERYBODY if tenant == EVERY_TENANT else tenant}.json"


def tenant_of(key: str) -> str:
    """The tenant of a key that `tenant_key` gave."""
    name = key.removeprefix(TENANTS).removesuffix(".json")
    return EVERY_TENANT if name == _EVERYBODY else name


def read_settings(key: str, body: bytes) -> TenantSettings:
    """The settings with this S3 key and these bytes. Raises BrokenObjectError."""
    return decoded(key, body, TenantSettings)


async def read_tenant(storage: Storage, tenant: str) -> TenantSettings:
    """What is set for the tenant; nothing if it has no settings. Raises BrokenObjectError."""
    try:
        return await read_record(storage, tenant_key(tenant), TenantSettings)
    except NotFoundError:
        return TenantSettings()


async def change_tenant(
    state: State,
    storage: Storage,
    tenant: str,
    changes: Mapping[str, Any],
    unset: tuple[str, ...] = (),
) -> TenantSettings:
    """Change these settings, and return all that the tenant has now.

    Of two changes at once, the later one wins. If this breaks off, repeat it. Raises
    InvalidInputError, and TransientError if a rebuild of Redis may undo the change.
    """
    settings = changed(await read_tenant(storage, tenant), changes, unset)
    if settings == TenantSettings():
        await storage.remove([tenant_key(tenant)])
    else:
        await storage.put(tenant_key(tenant), encoded(settings))
    await state.tenants.put(tenant, settings)
    return settings
