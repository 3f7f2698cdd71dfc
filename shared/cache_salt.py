"""Keeps tenants apart in an engine's prefix cache. Pure.

vLLM computes the salt into the hash of a prompt's first block, so requests with different salts
share no block: nobody can find out, by times or by `cached_tokens`, what others have sent.
"""

import hmac
from collections.abc import Collection
from dataclasses import dataclass

#: In the list of tenants that share prefixes, every one of them.
EVERYONE = "*"
_TENANT, _SHARED = b"tenant:", b"shared"
#: Characters of a salt, each of four bits: no two tenants get the same by chance.
_LENGTH = 32


def cache_salt(secret: bytes, tenant: str, sharing: Collection[str] = ()) -> str:
    """The salt of a tenant's requests to one model.

    The tenants in `sharing` have one salt together. Nobody without the secret can tell a salt.
    """
    is_shared = tenant in sharing or EVERYONE in sharing
    name = _SHARED if is_shared else _TENANT + tenant.encode()
    return hmac.digest(secret, name, "sha256").hex()[:_LENGTH]


def derived_secret(other: bytes) -> bytes:
    """A secret for salts that follows from another secret and does not reveal it."""
    return hmac.digest(other, b"cache salts", "sha256")


@dataclass(frozen=True)
class CacheSalts:
    """The salts of all tenants' requests to one model."""

    secret: bytes
    sharing: tuple[str, ...] = ()

    def of(self, tenant: str) -> str:
        """The tenant's salt."""
        return cache_salt(self.secret, tenant, self.sharing)
