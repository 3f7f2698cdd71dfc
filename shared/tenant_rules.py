"""What one tenant's requests may ask of each model. Pure."""

from collections.abc import Mapping

from shared.catalog import Catalog
from shared.input_places import InputPlaces
from shared.openai.row_rules import RowRules

#: Tenants whose rules are kept: they are looked at for each of their batches.
_MAX_KEPT = 1000


class TenantRules:
    """The rules of the catalog's models, for one tenant after another."""

    def __init__(self, catalog: Catalog, places: InputPlaces | None) -> None:
        """Without places, no media are taken from S3."""
        self._rules = catalog.rules_by_name()
        self._places = places
        self._kept: dict[str, Mapping[str, RowRules]] = {}

    def of(self, tenant: str) -> Mapping[str, RowRules]:
        """By each served name, what the tenant's requests may ask of it."""
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
