"""Which models a tenant may use, and what its requests may ask of each. Pure."""

from collections.abc import Collection, Mapping

from shared.adapters import WithAdapters
from shared.catalog import Catalog
from shared.input_places import InputPlaces
from shared.openai.row_rules import RowRules
from shared.tenants import TenantSettings

#: Tenants whose rules are kept: they are looked at for each of their batches.
_MAX_KEPT = 1000


class TenantRules:
    """The rules of the catalog's models, for one tenant after another."""

    def __init__(self, catalog: Catalog, places: InputPlaces | None) -> None:
        """Without places, no media are taken from S3."""
        self._endpoints = catalog.endpoints_by_name()
        self._takers = tuple(catalog.adapter_takers)
        self._rules = catalog.rules_by_name()
        self._places = places
        self._kept: dict[str, Mapping[str, RowRules]] = {}

    @property
    def take_adapters(self) -> bool:
        """Whether tenants may bring LoRA adapters for some model."""
        return bool(self._takers)

    def endpoints(
        self, settings: TenantSettings, adapters: Collection[str] = ()
    ) -> Mapping[str, frozenset[str]]:
        """By each name that the tenant may use, the endpoints that it answers.

        `adapters` are the ids of the tenant's own.
        """
        usable = settings.usable(self._endpoints)
        return WithAdapters(usable, self._takers, adapters) if adapters else usable

    def of(self, tenant: str, adapters: Collection[str] = ()) -> Mapping[str, RowRules]:
        """By each served name, what the tenant's requests may ask of it."""
        rules = self._of(tenant)
        return WithAdapters(rules, self._takers, adapters) if adapters else rules

    def _of(self, tenant: str) -> Mapping[str, RowRules]:
        if self._places is None:
            return self._rules
        if tenant not in self._kept:
            if len(self._kept) >= _MAX_KEPT:
                self._kept.clear()
            places = self._places.of(tenant)
            self._kept[tenant] = {
                name: rules.with_places(places) for name, rules in self._rules.items()
            }
        return self._kept[tenant]
