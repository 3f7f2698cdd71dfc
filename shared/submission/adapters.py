"""The LoRA adapters that a tenant has uploaded."""

from shared.state import State
from shared.tenant_rules import TenantRules


async def adapters_of(state: State, rules: TenantRules, tenant: str) -> frozenset[str]:
    """The ids of the tenant's adapters; none where no model takes any. Raises TransientError."""
    return await state.files.adapters(tenant) if rules.take_adapters else frozenset()
