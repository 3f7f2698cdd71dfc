from shared.catalog import Catalog
from shared.input_places import InputPlaces
from shared.tenant_rules import TenantRules

_CATALOG = Catalog.model_validate(
    {"pools": {"cpu": {"resources": {"CPU": 1}}}, "models": {"m": {"pools": ["cpu"]}}}
)
_PLACES = InputPlaces("ours", "inbox/{tenant}/", {"*": ["s3://all/{tenant}/"]})


def test_each_tenant_has_its_own_places() -> None:
    rules = TenantRules(_CATALOG, _PLACES)

    for tenant in ("acme", "umbrella", "acme"):
        assert rules.of(tenant)["m"].media.places == (
            f"s3://ours/inbox/{tenant}/",
            f"s3://all/{tenant}/",
        )


def test_without_places_nothing_comes_from_s3() -> None:
    assert TenantRules(_CATALOG, None).of("acme")["m"].media.places == ()
