import pytest

from shared.input_places import InputPlaces, is_in

_PLACES = InputPlaces(
    "ours",
    "inbox/{tenant}/",
    {"*": ["s3://all/{tenant}/"], "acme": ["s3://acme-data/exports/"]},
)


def test_a_tenant_has_its_prefix_the_places_of_all_and_its_own() -> None:
    assert _PLACES.of("acme") == (
        "s3://ours/inbox/acme/",
        "s3://all/acme/",
        "s3://acme-data/exports/",
    )
    assert _PLACES.of("umbrella") == ("s3://ours/inbox/umbrella/", "s3://all/umbrella/")


@pytest.mark.parametrize(
    ("bucket", "key"),
    [
        ("ours", "inbox/acme-2/a"),
        ("ours", "inbox/acme/../umbrella/a"),
        ("ours", "inbox/acme/./a"),
        ("ours/inbox", "acme/a"),
        ("acme-data", "a"),
    ],
)
def test_an_object_beside_the_places_is_not_in_them(bucket: str, key: str) -> None:
    assert is_in("ours", "inbox/acme/a", _PLACES.of("acme"))
    assert not is_in(bucket, key, _PLACES.of("acme"))
