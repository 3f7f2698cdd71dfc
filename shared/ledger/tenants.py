"""What operators have set for tenants, in S3: one object for each tenant that has settings."""

from collections.abc import Mapping
from typing import Any

from shared.errors import NotFoundError
from shared.state import State
from shared.storage import Storage
from shared.tenants import EVERY_TENANT, TenantSettings, changed, decode, encode

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


async def read_tenant(storage: Storage, tenant: str) -> TenantSettings:
    """What is set for the tenant; nothing if it has no settings."""
    try:
        return decode(await storage.get(tenant_key(tenant)))
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
    await storage.put(tenant_key(tenant), encode(settings))
    await state.tenants.put(tenant, settings)
    return settings
