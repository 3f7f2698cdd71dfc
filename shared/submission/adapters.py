"""The models of a tenant, with the LoRA adapters that it has uploaded."""

from collections.abc import Mapping

from shared.adapters import WithAdapters
from shared.catalog import Catalog
from shared.state import State
from shared.tenant_rules import TenantRules


async def adapters_of(state: State, rules: TenantRules, tenant: str) -> frozenset[str]:
    """The ids of the tenant's adapters; none where no model takes any. Raises TransientError."""
    return await state.files.adapters(tenant) if rules.take_adapters else frozenset()


async def usable_models(
    state: State, catalog: Catalog, tenant: str
) -> Mapping[str, frozenset[str]]:
    """By each name that the tenant may use, the endpoints that it answers.

    Raises TransientError.
    """
    settings = await state.tenants.settings(tenant)
    usable = settings.usable(catalog.endpoints_by_name())
    if not (takers := catalog.adapter_takers):
        return usable
    return WithAdapters(usable, takers, await state.files.adapters(tenant))
