import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.cache_salt import EVERYONE, cache_salt, derived_secret
from worker.settings import WorkerSettings

_SECRET = b"a secret"


def test_a_tenant_has_one_salt_and_no_other_tenant_has_it() -> None:
    assert cache_salt(_SECRET, "acme") == cache_salt(_SECRET, "acme")
    assert cache_salt(_SECRET, "acme") != cache_salt(_SECRET, "other")


def test_a_salt_depends_on_the_secret_and_shows_neither_it_nor_the_tenant() -> None:
    salt = cache_salt(_SECRET, "acme")

    assert salt != cache_salt(b"another secret", "acme")
    assert len(salt) == 32
    assert set(salt) <= set("0123456789abcdef")


def test_tenants_that_share_have_one_salt_and_the_others_their_own() -> None:
    sharing = ("acme", "beta")

    assert cache_salt(_SECRET, "acme", sharing) == cache_salt(_SECRET, "beta", sharing)
    assert cache_salt(_SECRET, "other", sharing) == cache_salt(_SECRET, "other")
    assert cache_salt(_SECRET, "acme", sharing) != cache_salt(_SECRET, "acme")


def test_all_share_where_the_operator_says_so() -> None:
    assert cache_salt(_SECRET, "acme", (EVERYONE,)) == cache_salt(_SECRET, "other", (EVERYONE,))


@given(names=st.lists(st.text(min_size=1, max_size=20), unique=True, min_size=2, max_size=5))
def test_no_name_of_a_tenant_gives_the_salt_of_others(names: list[str]) -> None:
    shared = cache_salt(_SECRET, names[0], (EVERYONE,))

    assert len({shared, *(cache_salt(_SECRET, name) for name in names)}) == len(names) + 1


@pytest.mark.parametrize(("given_", "key"), [("own", b"own"), ("", None), (None, None)])
def test_without_a_secret_of_its_own_it_follows_from_that_of_s3(
    given_: str | None, key: bytes | None
) -> None:
    settings = WorkerSettings.model_validate(
        {
            "redis_url": "redis://nowhere",
            "s3_endpoint": "http://nowhere",
            "s3_access_key": "a",
            "s3_secret_key": "of s3",
            "catalog": "catalog.yaml",
            "cache_secret": given_,
        }
    )

    assert settings.cache_key == (key or derived_secret(b"of s3"))
    assert b"of s3" not in settings.cache_key
