"""LoRA adapters that tenants upload: what is checked of a file, and whose adapter a name means."""

from typing import Any

from gateway.dependencies import Services
from gateway.file_store import live_file
from gateway.live_client import LiveAdapter
from shared.adapter_archive import AdapterLimits, read_adapter
from shared.adapters import PURPOSE, adapter_named
from shared.catalog import Catalog
from shared.errors import InvalidInputError, NotFoundError
from shared.storage import Stored


def require_takers(catalog: Catalog, purpose: str | None) -> None:
    """Raise InvalidInputError for an adapter that no model would take."""
    if purpose == PURPOSE and not catalog.adapter_takers:
        raise InvalidInputError(
            "No model takes adapters: the operator allows them for a model by `tenant_lora`.",
            param="purpose",
        )


async def require_adapter(services: Services, purpose: str, stored: Stored) -> None:
    """Look at a file that is to be an adapter. Raises InvalidInputError and TransientError.

    Each model looks at it again, with limits of its own.
    """
    if purpose != PURPOSE:
        return
    require_takers(services.catalog, purpose)
    each = services.catalog.adapter_takers.values()
    limits = AdapterLimits(max(one.bytes for one in each), max(one.rank for one in each))

    async def read(start: int, end: int) -> bytes:
        return await services.storage.get(
            stored.key, start=start, end=min(end, stored.size), etag=stored.etag
        )

    await read_adapter(read, stored.size, limits)


async def adapter_of(services: Services, tenant: str, name: Any) -> LiveAdapter | None:
    """The tenant's adapter of this name; None if it has none, or the name is that of none."""
    own = adapter_named(name) if isinstance(name, str) else None
    if own is None or own.model not in services.catalog.adapter_takers:
        return None
    try:
        file = await live_file(services.state, tenant, own.file_id)
    except NotFoundError:
        return None
    return LiveAdapter(name, file) if file.purpose == PURPOSE else None
